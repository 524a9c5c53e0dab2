"""Argo CD's health check, run by a Lua interpreter on each recorded status, without the libraries that Argo CD disables."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import lua51

from tests.harness.goldens import STATUS_NAMES, recorded_status

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "charts" / "mirrorflow" / "files" / "argocd" / "mirrorflow.io"
CHECK = CHECKS / "MirrorFlow"
LIBRARIES = (
    "io",
    "os",
    "string",
    "table",
    "math",
    "debug",
    "package",
    "require",
    "coroutine",
    "load",
    "loadstring",
    "dofile",
)
EXPECTED = {
    "Healthy": {
        "advancing",
        "idle",
        "throttled",
        "groups-failing",
        "seeded",
        "seeded-with-a-gap",
        "seeded-in-spite-of-failures",
        "warnings",
        "seed-failed",
        "seed-makes-no-step",
        "verified",
        "verified-in-part",
        "verifying",
        "verification-failed",
        "verification-overdue",
        "archived",
        "archived-continuously",
        "archive-incomplete",
        "archive-overdue",
        "archive-queued",
        "archive-source-unreachable",
        "restored",
        "restore-failed",
    },
    "Suspended": {"paused", "stopped", "seed-paused", "reconciliation-paused"},
}


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load(path.read_text(), yaml.CSafeLoader)
    return document


def health(resource: dict[str, Any], check: Path = CHECK) -> tuple[str, str]:
    """Returns the status and message of the Lua file in the folder *check*."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    for name in LIBRARIES:
        lua.globals()[name] = None
    lua.globals()["python"] = None
    lua.globals()["obj"] = lua.table_from(resource, recursive=True)
    result = lua.execute((check / "health.lua").read_text())
    return result["status"], result["message"]


@cache
def _health_of(name: str) -> tuple[str, str]:
    return health(recorded_status(name))


def _condition(resource: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(
        (condition for condition in resource["status"]["conditions"] if condition["type"] == kind),
        {"status": "Unknown"},
    )


@pytest.mark.parametrize("name", STATUS_NAMES)
def test_health_follows_from_the_conditions(name: str) -> None:
    """Healthy means Current in kstatus without differences. Degraded means that a user must act.

    The message is that of a condition.
    """
    resource = recorded_status(name)
    status, message = _health_of(name)
    ready, stalled, reconciling, verified = (
        _condition(resource, kind) for kind in ("Ready", "Stalled", "Reconciling", "Verified")
    )
    current = (ready["status"], stalled["status"], reconciling["status"]) == ("True", "False", "False")
    current = current and verified["status"] != "False"

    assert (status == "Healthy") == current
    assert status == "Degraded" or stalled["status"] != "True"
    assert message in {
        condition["message"]
        for condition in (ready, stalled, reconciling, verified)
        if "message" in condition
    }
    assert status in {"Healthy", "Degraded", "Progressing", "Suspended"}


@pytest.mark.parametrize("status", EXPECTED)
def test_exactly_the_expected_situations_are_healthy_or_suspended(status: str) -> None:
    assert EXPECTED[status] == {name for name in STATUS_NAMES if _health_of(name)[0] == status}


@pytest.mark.parametrize("name", ["pausing", "stopping", "rolling-out"])
def test_a_flow_that_is_changing_is_progressing(name: str) -> None:
    assert _health_of(name)[0] == "Progressing"


def test_a_flow_with_an_outdated_or_missing_status_is_progressing() -> None:
    """The flow is new, its spec has changed, or its status is empty."""
    resource = recorded_status("advancing")
    changed = {**resource, "metadata": {**resource["metadata"], "generation": 2}}
    new = {key: value for key, value in resource.items() if key != "status"}

    assert [health(flow)[0] for flow in (changed, new, {**new, "status": {}})] == ["Progressing"] * 3


@pytest.mark.parametrize("kind", ["MirrorFlow", "MirrorPair", "Switchover"])
def test_the_health_tests_for_argo_cd_are_complete_and_pass(kind: str) -> None:
    """The tests have the format of Argo CD's resource_customizations and use recorded statuses."""
    check = CHECKS / kind
    cases = _read(check / "health_test.yaml")["tests"]

    assert {case["inputPath"] for case in cases} == {
        f"testdata/{path.name}" for path in (check / "testdata").iterdir()
    }
    for case in cases:
        path = check / case["inputPath"]
        expected = (case["healthStatus"]["status"], case["healthStatus"]["message"])
        assert health(_read(path), check) == expected
    suspended = {"Suspended"} if kind == "MirrorFlow" else set()  # no field pauses a pair
    assert {case["healthStatus"]["status"] for case in cases} == {
        "Healthy",
        "Degraded",
        "Progressing",
    } | suspended


@pytest.mark.parametrize("kind", ["MirrorPair", "Switchover"])
def test_a_resource_that_the_operator_has_not_observed_is_progressing(kind: str) -> None:
    """The resource is new, its spec has changed, or its status is empty."""
    new = {"metadata": {"generation": 1}}

    assert [health(resource, CHECKS / kind)[0] for resource in (new, {**new, "status": {}})] == [
        "Progressing"
    ] * 2


@pytest.mark.parametrize("kind", ["MirrorFlow", "MirrorPair", "Switchover"])
def test_the_documentation_contains_the_current_health_check(kind: str) -> None:
    """Users copy it from docs/gitops.md to argocd-cm."""
    indented = "".join(
        f"    {line}".rstrip() + "\n" for line in (CHECKS / kind / "health.lua").read_text().splitlines()
    )

    assert indented in (ROOT / "docs" / "gitops.md").read_text()
