"""Every command that takes a flow refuses what its connectors would refuse, in the same words, before it does anything."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands import COMMANDS

# Those that have the flags of a flow; `status` and the others have none.
TAKE_A_FLOW = sorted(COMMANDS.keys() - {"status", "convert", "completion"})
ARGUMENTS = {"dump": ["offset-syncs"], "archive": ["--archive", "/x"], "restore": ["--archive", "/x"]}
SLIPS = [
    (
        "checkpoint",
        {"group.filter.class": "com.acme.Filter"},
        "east-to-west: spec.connectors.checkpoint: group.filter.class is refused",
    ),
    (
        "source",
        {"offset.lag.max": "many"},
        "east-to-west: spec.connectors.source: offset.lag.max: 'many' is not a whole number",
    ),
]


def document(connector: str, config: dict[str, str], **source: Any) -> dict[str, Any]:
    """A flow whose *connector* has *config*; no broker listens at its addresses."""
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": "east-to-west"},
        "spec": {
            "source": {"alias": "east", "bootstrapServers": ["127.0.0.1:1"], **source},
            "target": {"alias": "west", "bootstrapServers": ["127.0.0.1:2"]},
            "connectors": {connector: {"config": config}},
        },
    }


def written(folder: Path, content: dict[str, Any]) -> list[str]:
    """The arguments that name the flow *content*."""
    path = folder / "flow.yaml"
    path.write_text(yaml.safe_dump(content))
    return ["-f", str(path), "--secrets", str(folder)]


@pytest.fixture(autouse=True)
def no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.parametrize(("connector", "config", "sentence"), SLIPS, ids=["checkpoint", "source"])
@pytest.mark.parametrize("command", TAKE_A_FLOW)
def test_what_a_connector_refuses_every_command_refuses(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    connector: str,
    config: dict[str, str],
    sentence: str,
) -> None:
    flow = written(tmp_path, document(connector, config))

    status = main([command, *ARGUMENTS.get(command, []), *flow])

    said = capsys.readouterr()
    assert (2, "") == (status, said.out)
    assert said.err.startswith(sentence)


def test_an_impossible_client_is_named_once_and_not_for_each_connector(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    login = {"type": "Custom", "sasl": True, "config": {"sasl.mechanism": "MAGIC"}}
    flow = written(tmp_path, document("source", {}, authentication=login))

    status = main(["run", *flow])

    said = capsys.readouterr().err.splitlines()
    assert status == 2
    assert ["east-to-west: Clients of cluster east"] == [line[:37] for line in said]
