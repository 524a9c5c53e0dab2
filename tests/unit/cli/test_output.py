"""`--json` of commands that need no cluster prints one object, also on errors."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.__main__ import main
from tests.unit.cli.commands.test_validate import flow


def run_json(
    capsys: pytest.CaptureFixture[str], command: str, *files: Path, more: tuple[str, ...] = ()
) -> tuple[int, Any]:
    """Returns the exit status and the object on stdout."""
    file_arguments = [argument for file in files for argument in ("-f", str(file))]
    status = main([command, "--json", "--secrets", str(files[0].parent), *more, *file_arguments])
    out, err = capsys.readouterr()
    assert "" == err
    return status, json.loads(out)


def test_validate_reports_each_flow(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, output = run_json(capsys, "validate", flow(tmp_path))
    expected = {"name": "east-to-west", "source": "east", "target": "west", "warnings": []}
    assert (0, {"valid": True, "flows": [expected]}) == (status, output)


def test_validate_reports_all_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"offset.lag.max": "many", "topic.filter.class": "com.acme.Filter"}
    status, output = run_json(capsys, "validate", flow(tmp_path, config=config))
    assert (2, False, 2) == (status, output["valid"], len(output["problems"]))


def test_plan_reports_connectors_with_their_properties(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, output = run_json(capsys, "plan", flow(tmp_path), more=("--offline",))
    (flow_plan,) = output["flows"]
    assert (0, "east-to-west", None, []) == (
        status,
        flow_plan["name"],
        flow_plan["topics"],
        output["problems"],
    )
    kinds = [connector["kind"] for connector in flow_plan["connectors"]]
    assert ["MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector"] == kinds
    assert "east" == flow_plan["connectors"][0]["connectorProperties"]["source.cluster.alias"]


def test_plan_reports_conflicting_flows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    there = flow(tmp_path, policy="Identity")
    back = flow(tmp_path, "west", "east", policy="Identity")
    status, output = run_json(capsys, "plan", there, back, more=("--offline",))
    assert (1, True) == (status, bool(output["problems"]))


def test_check_reports_problems(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, output = run_json(capsys, "check", flow(tmp_path))
    assert (1, "east-to-west", False) == (status, output["flow"], output["canRun"])
    assert ["Cluster east", "Cluster west"] == [problem[:12] for problem in output["problems"]]


def test_acls_reports_one_object_per_acl(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, output = run_json(capsys, "acls", flow(tmp_path))
    assert 0 == status
    assert {
        "connector": "MirrorSourceConnector",
        "side": "source",
        "cluster": "east",
        "principal": "User:mirrorflow",
        "resourceType": "topic",
        "resourceName": "*",
        "patternType": "literal",
        "operations": ["Read", "Describe", "DescribeConfigs"],
        "optional": False,
    } in output["acls"]
    assert ["__consumer_offsets"] == [acl["resourceName"] for acl in output["acls"] if acl["optional"]]


def test_export_reports_properties_and_the_fields_that_they_cannot_express(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = flow(tmp_path)
    file.write_text(file.read_text() + "  state: Paused\n")

    status, output = run_json(capsys, "export", file)

    assert 0 == status
    assert {"clusters": "east, west", "east->west.enabled": "true"}.items() <= output["properties"].items()
    assert ["east-to-west: spec.state Paused: MM2 runs every enabled flow."] == output["unsupported"][:1]


@pytest.mark.parametrize("command", ["check", "plan", "acls", "export"])
def test_refused_settings_are_reported_as_problems(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    status, output = run_json(capsys, command, flow(tmp_path, config={"offset.lag.max": "many"}))
    assert status == 2
    (problem,) = output["problems"]
    assert problem.startswith("east-to-west: spec.connectors.source: offset.lag.max: 'many'")


@pytest.mark.parametrize("command", [["dump", "positions"], ["offsets"]])
def test_commands_that_print_lines_report_problems_as_the_last_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    file = flow(tmp_path, config={"offset.lag.max": "many"})

    status = main([*command, "--json", "-f", str(file)])
    out, err = capsys.readouterr()

    assert (2, "", 1) == (status, err, out.count("\n"))
    (problem,) = json.loads(out)["problems"]
    assert "offset.lag.max: 'many'" in problem


def test_a_file_that_cannot_be_converted_is_reported_as_problems(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n")

    status = main(["convert", "--json", str(file)])
    out, err = capsys.readouterr()

    assert (2, "") == (status, err)
    assert [f"{file}: clusters: no replication flow is enabled"] == [
        problem.partition(";")[0] for problem in json.loads(out)["problems"]
    ]


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"]])
def test_an_output_that_cannot_be_written_is_an_error_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]
) -> None:
    """The disk of the file that stdout goes to is full."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Path("/dev/full").open("w") as full, contextlib.redirect_stdout(full):
        status = main(arguments)

    assert (1, "The command failed: No space left on device.\n") == (
        status,
        capsys.readouterr().err,
    )


def test_a_command_without_stdout_ends_with_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdout", None)

    assert 0 == main(["status"])


def test_a_folder_that_cannot_be_written_is_an_error_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No folder for temporary files can be written."""

    def fail(*_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found", "/tmp")

    monkeypatch.setattr("tempfile.mkdtemp", fail)
    status = main(["run", "-f", str(flow(tmp_path)), "--log", str(tmp_path / "log"), "--until-caught-up"])

    assert 1 == status
    assert "/tmp cannot be used: No usable temporary directory found." in capsys.readouterr().err


STARTS = """
import os, signal, sys
from mirrorflow_cli import __main__
%s
__main__._execute = lambda *_, **__: %s
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(
    ("before", "command"),
    [
        # Another program that is started writes to its own stdout, not to a file of this one.
        ("os.close(1); sys.stdout = None", "sys.stdout.isatty() or os.open(__file__, 0) < 3"),
        (
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
            "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1]",
        ),
    ],
    ids=["closed stdout", "ignored children"],
)
def test_a_command_runs_without_stdout_and_with_an_ignored_sigchld(
    tmp_path: Path, before: str, command: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(STARTS % (before, command))
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, timeout=300
    )

    assert (0, "") == (ended.returncode, ended.stderr)
