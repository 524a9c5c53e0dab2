"""`--json` of the commands that contact nothing: one object, also where something is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.__main__ import main
from tests.unit.cli.test_validate import flow


def told(
    capsys: pytest.CaptureFixture[str], command: str, *files: Path, more: tuple[str, ...] = ()
) -> tuple[int, Any]:
    """Exit status and the object on stdout."""
    named = [argument for file in files for argument in ("-f", str(file))]
    status = main([command, "--json", "--secrets", str(files[0].parent), *more, *named])
    out, err = capsys.readouterr()
    assert "" == err
    return status, json.loads(out)


def test_validate_reports_each_flow(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, said = told(capsys, "validate", flow(tmp_path))
    named = {"name": "east-to-west", "source": "east", "target": "west", "warnings": []}
    assert (0, {"valid": True, "flows": [named]}) == (status, said)


def test_validate_reports_every_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"offset.lag.max": "many", "topic.filter.class": "com.acme.Filter"}
    status, said = told(capsys, "validate", flow(tmp_path, config=config))
    assert (2, False, 2) == (status, said["valid"], len(said["problems"]))


def test_plan_reports_connectors_with_their_properties(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, said = told(capsys, "plan", flow(tmp_path), more=("--offline",))
    (one,) = said["flows"]
    assert (0, "east-to-west", None, []) == (status, one["name"], one["topics"], said["problems"])
    kinds = [connector["kind"] for connector in one["connectors"]]
    assert ["MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector"] == kinds
    assert "east" == one["connectors"][0]["connectorProperties"]["source.cluster.alias"]


def test_plan_reports_conflicting_flows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    there = flow(tmp_path, policy="Identity")
    back = flow(tmp_path, "west", "east", policy="Identity")
    status, said = told(capsys, "plan", there, back, more=("--offline",))
    assert (1, True) == (status, bool(said["problems"]))


def test_check_reports_problems(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, said = told(capsys, "check", flow(tmp_path))
    assert (1, "east-to-west", False) == (status, said["flow"], said["canRun"])
    assert ["Cluster east", "Cluster west"] == [problem[:12] for problem in said["problems"]]


def test_acls_are_told_one_by_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, said = told(capsys, "acls", flow(tmp_path))
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
    } in said["acls"]


def test_export_reports_properties_and_what_they_cannot_express(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = flow(tmp_path)
    file.write_text(file.read_text() + "  state: Paused\n")

    status, said = told(capsys, "export", file)

    assert 0 == status
    assert {"clusters": "east, west", "east->west.enabled": "true"}.items() <= said["properties"].items()
    assert ["east-to-west: spec.state Paused: MM2 runs every enabled flow."] == said["unsupported"][:1]


@pytest.mark.parametrize("command", ["check", "plan", "acls", "export"])
def test_refusals_are_reported_as_problems(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    status, said = told(capsys, command, flow(tmp_path, config={"offset.lag.max": "many"}))
    assert status == 2
    (problem,) = said["problems"]
    assert problem.startswith("east-to-west: spec.connectors.source: offset.lag.max: 'many'")
