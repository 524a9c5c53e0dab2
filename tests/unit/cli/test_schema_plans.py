"""`plan`, `check` and `export` of a flow with schema registries write nothing to the registries."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.run_progress import Companion, companion_line
from tests.harness.schema_registry.registry_in_process import RunningRegistry
from tests.unit.connectors.test_schema_sync import register

FLOW = """
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: east-to-west}}
spec:
  source: {{alias: east, bootstrapServers: ["127.0.0.1:1"]}}
  target: {{alias: west, bootstrapServers: ["127.0.0.1:2"]}}
  schemas:
    source: {{url: "{source}"}}
    target: {{url: "{target}", authentication: {{type: Bearer, token: {{secretName: west, key: token}}}}}}
"""


@pytest.fixture
def registries() -> Iterator[tuple[RunningRegistry, RunningRegistry]]:
    source, target = RunningRegistry(), RunningRegistry()
    register(source.model, "orders-value", '"int"')
    register(source.model, "other-value", '"long"')
    yield source, target
    source.close()
    target.close()


@pytest.fixture
def flow(registries: tuple[RunningRegistry, RunningRegistry], tmp_path: Path) -> list[str]:
    """Returns the arguments that select the flow."""
    source, target = registries
    path = tmp_path / "flow.yaml"
    path.write_text(FLOW.format(source=source.url, target=target.url))
    (tmp_path / "west").mkdir()
    (tmp_path / "west" / "token").write_text("a.b.c\n")
    return ["-f", str(path), "--secrets", str(tmp_path)]


def test_a_plan_lists_what_would_be_written(
    registries: tuple[RunningRegistry, RunningRegistry], flow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", *flow])

    text = capsys.readouterr().out
    assert "copies schemas: 2 schema versions of 2 subjects match, 2 of them missing on the target" in text
    assert "would set the mode of context . to IMPORT" in text
    assert "would register version 1 of orders-value with id 1" in text
    assert registries[1].model.versions == {}
    assert registries[1].model.modes == {}


def test_conflicts_are_problems_of_plan_and_check(
    registries: tuple[RunningRegistry, RunningRegistry], flow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    register(registries[1].model, "own", '"bytes"')

    assert main(["plan", "--json", *flow]) == 1
    planned = json.loads(capsys.readouterr().out)
    assert planned["flows"][0]["schemas"]["conflicts"][0]["kind"] == "TargetIssuesIds"
    assert any("may issue an id" in problem for problem in planned["problems"])

    assert main(["check", *flow]) == 1
    assert "fail  Context . of the target has schemas" in capsys.readouterr().out


def test_an_offline_plan_needs_no_registry(
    registries: tuple[RunningRegistry, RunningRegistry], flow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--offline", *flow]) == 0

    assert "schemas of subjects that match .*, every 5 s" in capsys.readouterr().out
    assert [] == registries[0].requests


def test_an_exported_mm2_properties_has_the_registries(
    registries: tuple[RunningRegistry, RunningRegistry], flow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *flow]) == 0

    text = capsys.readouterr().out
    assert f"east.schema.registry.url = {registries[0].url}" in text
    assert "west.schema.registry.bearer.auth.token = ${dir:" in text


def test_a_run_shows_the_schemas() -> None:
    received = {
        "connector": "MirrorSchemaConnector",
        "state": "RUNNING",
        "schemas": {"subjects": 2, "versions": 1200, "missing": 3, "conflicts": 1},
    }

    assert companion_line(Companion(received=received)) == (
        "MirrorSchemaConnector: 2 subjects, 1,200 schema versions, 3 not copied yet, 1 conflict"
    )
