"""Each command that takes a flow refuses settings that its connectors would refuse, with the same message."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands import COMMANDS

# The commands with the flags of a flow; `switchover` and `diverged` have those of a pair.
FLOW_COMMANDS = sorted(COMMANDS.keys() - {"status", "convert", "completion", "switchover", "diverged"})
ARGUMENTS = {"dump": ["offset-syncs"], "archive": ["--archive", "/x"], "restore": ["--archive", "/x"]}
WRONG_SETTINGS = [
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
    """Returns a flow whose *connector* has *config*. No broker listens at its addresses."""
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


def flow_arguments(folder: Path, content: dict[str, Any]) -> list[str]:
    """Writes a file with the flow *content*; returns the arguments for it."""
    path = folder / "flow.yaml"
    path.write_text(yaml.safe_dump(content))
    return ["-f", str(path), "--secrets", str(folder)]


@pytest.fixture(autouse=True)
def no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.parametrize(("connector", "config", "sentence"), WRONG_SETTINGS, ids=["checkpoint", "source"])
@pytest.mark.parametrize("command", FLOW_COMMANDS)
def test_each_command_refuses_settings_that_a_connector_refuses(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    connector: str,
    config: dict[str, str],
    sentence: str,
) -> None:
    flow = flow_arguments(tmp_path, document(connector, config))

    status = main([command, *ARGUMENTS.get(command, []), *flow])

    captured = capsys.readouterr()
    assert (2, "") == (status, captured.out)
    assert captured.err.startswith(sentence)


def test_an_invalid_client_setting_is_reported_once_for_all_connectors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    login = {"type": "Custom", "sasl": True, "config": {"sasl.mechanism": "MAGIC"}}
    flow = flow_arguments(tmp_path, document("source", {}, authentication=login))

    status = main(["run", *flow])

    lines = capsys.readouterr().err.splitlines()
    assert status == 2
    assert ["east-to-west: Clients of cluster east"] == [line[:37] for line in lines]
