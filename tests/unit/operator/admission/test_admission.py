"""Admission: the version of a flow, and what runs of a flow that is not accepted."""

import pytest

from mirrorflow_operator.admission.admit import admit
from mirrorflow_operator.api.spec import State
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.status.conditions import Problem, Reason
from tests.unit.operator.observations import mirror_flow, resource

LOOP = Problem(Reason.LOOP_FOUND, "Flows a and b make a loop.")


@pytest.mark.parametrize(
    ("wanted", "pinned", "offered", "version"),
    [
        ("", "", ("1.1.0", "1.0.0"), "1.1.0"),  # pinned at first use: the operator's default
        ("", "1.0.0", ("1.1.0", "1.0.0"), "1.0.0"),  # an upgraded operator rolls nothing
        ("1.1.0", "1.0.0", ("1.1.0", "1.0.0"), "1.1.0"),  # an upgrade, one flow at a time
        ("1.0.0", "1.1.0", ("1.1.0", "1.0.0"), "1.0.0"),  # and back
        ("1.1", "", ("1.2.0", "1.1.2", "1.1.10"), "1.1.10"),  # the newest patch release, by number
        ("1.1", "1.1.2", ("1.1.3", "1.1.2"), "1.1.3"),  # an upgraded operator brings it along
        ("1.1", "1.0.4", ("1.1.3", "1.1.2"), "1.1.3"),
        ("1.1", "1.1.2", ("1.1", "1.1.3"), "1.1"),  # a tag of one's own is itself
    ],
)
def test_a_flow_keeps_its_version_until_the_spec_names_another(
    wanted: str, pinned: str, offered: tuple[str, ...], version: str
) -> None:
    """spec.version, else the pinned one, else the operator's default."""
    flow = mirror_flow(version=wanted)
    found = admit(resource(flow, status=Status(version=pinned)), versions=offered)

    assert (flow, version, None) == (found.flow, found.version, found.refusal)


@pytest.mark.parametrize(
    ("wanted", "pinned"), [("9.0.0", "1.0.0"), ("", "0.9.0"), ("9.0", "1.0.0"), ("1.1", "1.1.4")]
)
def test_a_running_flow_with_an_unknown_version_keeps_its_version(wanted: str, pinned: str) -> None:
    """All else of its spec is carried out; the sentence names what there is."""
    flow = mirror_flow(version=wanted)
    found = admit(resource(flow, status=Status(version=pinned)), versions=("1.1.0", "1.0.0"))

    assert (flow, pinned, False) == (found.flow, found.version, found.has_conflict)
    assert found.refusal is not None
    assert Reason.UNKNOWN_VERSION is found.refusal.reason
    assert "1.1.0, 1.0.0" in found.refusal.message
    assert f"keeps version {pinned}" in found.refusal.message


def test_a_new_flow_with_an_unknown_version_is_not_started() -> None:
    """There is no image that it could be started with."""
    found = admit(resource(mirror_flow(version="9.0.0")), versions=("1.1.0", "1.0.0"))

    assert (None, "") == (found.flow, found.version)
    assert found.refusal is not None
    assert "Nothing is started" in found.refusal.message


def test_a_conflicting_flow_is_planned_as_stopped() -> None:
    """Its pods go and its objects stay; with the version that it would have."""
    found = admit(resource(status=Status(version="1.0.0")), versions=("1.1.0", "1.0.0"), conflict=LOOP)

    assert found.flow is not None
    assert (State.STOPPED, "1.0.0", LOOP) == (found.flow.spec.state, found.version, found.refusal)
    assert found.has_conflict


def test_a_conflicting_flow_keeps_an_unknown_version() -> None:
    """Its objects must not change to a version that no user chose."""
    found = admit(resource(status=Status(version="0.9.0")), versions=("1.1.0", "1.0.0"), conflict=LOOP)

    assert "0.9.0" == found.version
