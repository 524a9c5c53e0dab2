"""The examples of a systemd unit and a compose file: they parse, and what they start exists."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_cli.commands import command_parser
from mirrorflow_replicator.__main__ import EXIT_SETTINGS, _parser
from mirrorflow_replicator.config.dedicated_mode import load_mm2
from mirrorflow_replicator.version import version

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "examples" / "systemd" / "mirrorflow.service"
COMPOSE = ROOT / "examples" / "compose" / "compose.yaml"
VERIFY_S = 60.0


def service() -> dict[str, str]:
    """The section [Service] of the unit."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    return dict(unit["Service"])


def composed() -> dict[str, Any]:
    """The one service of the compose file."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def test_the_unit_starts_a_command_that_exists() -> None:
    program, *arguments = shlex.split(service()["ExecStart"])
    parsed = command_parser({"run"}).parse_args(arguments)

    assert "mirrorflow" == Path(program).name
    assert ("/etc/mirrorflow/flow.yaml", "/etc/mirrorflow/secrets") == (parsed.file, parsed.secrets)


def test_the_unit_does_not_restart_what_no_restart_heals() -> None:
    assert {
        "Restart": "on-failure",
        "RestartPreventExitStatus": str(EXIT_SETTINGS),
        "SuccessExitStatus": "143",
        "KillMode": "mixed",
    }.items() <= service().items()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a program that is there: the one of the example need not be installed here."""
    unit = tmp_path / "mirrorflow.service"
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit],
        capture_output=True,
        text=True,
        timeout=VERIFY_S,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stdout + done.stderr)


def test_the_container_starts_a_command_that_exists() -> None:
    one = composed()["services"]["mirrorflow"]
    parsed = _parser().parse_args(one["command"])

    assert ("mm2", "/etc/mirrorflow/mm2.properties") == (parsed.form, str(parsed.file))
    assert str(parsed.file) in [config["target"] for config in one["configs"]]
    assert f"mirrorflow/replicator:{version()}" == one["image"]
    assert re.search(
        rf"^FROM .* AS {one['build']['target']}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    assert (COMPOSE.parent / one["build"]["context"]).resolve() == ROOT


def test_the_container_s_file_is_a_flow_that_serves_what_compose_asks_for() -> None:
    found = composed()
    (config,) = found["configs"].values()
    settings = load_mm2(config["content"].replace("$$", "$"))
    one = found["services"]["mirrorflow"]

    assert ["http://0.0.0.0:8083"] == list(settings[0].http.listeners)
    assert one["ports"] == ["127.0.0.1:8083:8083"]
    assert "http://127.0.0.1:8083/health" in one["healthcheck"]["test"][-1]
    assert any(connector.source is not None for worker in settings for connector in worker.connectors)
