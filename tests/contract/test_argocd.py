"""Argo CD's health check, run by a Lua interpreter on every recorded status, without the libraries that Argo CD leaves out."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import lua51

from tests.harness.goldens import STATUS_NAMES, recorded_status

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "charts" / "mirrorflow" / "files" / "argocd" / "mirrorflow.io" / "MirrorFlow"
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
    },
    "Suspended": {"paused", "stopped", "seed-paused", "reconciliation-paused"},
}


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.load(path.read_text(), yaml.CSafeLoader)
    return read


def health(resource: dict[str, Any]) -> tuple[str, str]:
    """Status and message, as the Lua file gives them."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    for name in LIBRARIES:
        lua.globals()[name] = None
    lua.globals()["python"] = None
    lua.globals()["obj"] = lua.table_from(resource, recursive=True)
    found = lua.execute((CHECK / "health.lua").read_text())
    return found["status"], found["message"]


@cache
def _health_of(name: str) -> tuple[str, str]:
    return health(recorded_status(name))


def _condition(resource: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(
        (one for one in resource["status"]["conditions"] if one["type"] == kind), {"status": "Unknown"}
    )


@pytest.mark.parametrize("name", STATUS_NAMES)
def test_health_says_what_the_conditions_say(name: str) -> None:
    """Healthy where kstatus would say Current and no difference is known; Degraded where a user must act.

    The message is a condition's.
    """
    resource = recorded_status(name)
    status, message = _health_of(name)
    ready, stalled, reconciling, verified = (
        _condition(resource, one) for one in ("Ready", "Stalled", "Reconciling", "Verified")
    )
    current = (ready["status"], stalled["status"], reconciling["status"]) == ("True", "False", "False")
    current = current and verified["status"] != "False"

    assert (status == "Healthy") == current
    assert status == "Degraded" or stalled["status"] != "True"
    assert message in {one["message"] for one in (ready, stalled, reconciling, verified) if "message" in one}
    assert status in {"Healthy", "Degraded", "Progressing", "Suspended"}


@pytest.mark.parametrize("status", EXPECTED)
def test_these_situations_and_no_others(status: str) -> None:
    """Of those that are recorded."""
    assert EXPECTED[status] == {name for name in STATUS_NAMES if _health_of(name)[0] == status}


@pytest.mark.parametrize("name", ["pausing", "stopping", "rolling-out"])
def test_what_is_under_way_is_in_progress(name: str) -> None:
    assert _health_of(name)[0] == "Progressing"


def test_a_spec_that_was_not_looked_at_is_in_progress() -> None:
    """New, changed, or without any status: the last word was about something else."""
    resource = recorded_status("advancing")
    changed = {**resource, "metadata": {**resource["metadata"], "generation": 2}}
    new = {key: value for key, value in resource.items() if key != "status"}

    assert [health(one)[0] for one in (changed, new, {**new, "status": {}})] == ["Progressing"] * 3


def test_the_check_comes_with_argo_cds_own_tests() -> None:
    """In the form of its resource_customizations, with recorded statuses."""
    cases = _read(CHECK / "health_test.yaml")["tests"]

    assert {one["inputPath"] for one in cases} == {
        f"testdata/{path.name}" for path in (CHECK / "testdata").iterdir()
    }
    for one in cases:
        path = CHECK / one["inputPath"]
        assert health(_read(path)) == (one["healthStatus"]["status"], one["healthStatus"]["message"])
    assert {one["healthStatus"]["status"] for one in cases} == {
        "Healthy",
        "Degraded",
        "Progressing",
        "Suspended",
    }


def test_the_documents_show_the_check_as_it_is() -> None:
    """docs/gitops.md holds the whole of it, to be copied into argocd-cm."""
    indented = "".join(
        f"    {line}".rstrip() + "\n" for line in (CHECK / "health.lua").read_text().splitlines()
    )

    assert indented in (ROOT / "docs" / "gitops.md").read_text()
