"""The examples of a systemd unit and a compose file are valid and start existing commands."""

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
    """Returns the section [Service] of the unit."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    return dict(unit["Service"])


def compose_file() -> dict[str, Any]:
    """Returns the content of the compose file."""
    content: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return content


def test_the_unit_starts_a_command_that_exists() -> None:
    program, *arguments = shlex.split(service()["ExecStart"])
    parsed = command_parser({"run"}).parse_args(arguments)

    assert "mirrorflow" == Path(program).name
    assert ("/etc/mirrorflow/flow.yaml", "/etc/mirrorflow/secrets") == (parsed.file, parsed.secrets)


def test_the_unit_does_not_restart_after_an_error_in_settings() -> None:
    assert {
        "Restart": "on-failure",
        "RestartPreventExitStatus": str(EXIT_SETTINGS),
        "SuccessExitStatus": "143",
        "KillMode": "mixed",
    }.items() <= service().items()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """An existing program replaces MirrorFlow, which may not be installed."""
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
    container = compose_file()["services"]["mirrorflow"]
    parsed = _parser().parse_args(container["command"])

    assert ("mm2", "/etc/mirrorflow/mm2.properties") == (parsed.form, str(parsed.file))
    assert str(parsed.file) in [config["target"] for config in container["configs"]]
    assert f"mirrorflow/replicator:{version()}" == container["image"]
    assert re.search(
        rf"^FROM .* AS {container['build']['target']}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    assert (COMPOSE.parent / container["build"]["context"]).resolve() == ROOT


def test_the_containers_flow_serves_the_port_and_health_check_of_the_compose_file() -> None:
    compose = compose_file()
    (config,) = compose["configs"].values()
    settings = load_mm2(config["content"].replace("$$", "$"))
    container = compose["services"]["mirrorflow"]

    assert ["http://0.0.0.0:8083"] == list(settings[0].http.listeners)
    assert container["ports"] == ["127.0.0.1:8083:8083"]
    assert "http://127.0.0.1:8083/health" in container["healthcheck"]["test"][-1]
    assert any(connector.source is not None for worker in settings for connector in worker.connectors)
