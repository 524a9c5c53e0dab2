"""Admission selects the version of a flow, and decides what runs of a flow that is not accepted."""

import pytest

from mirrorflow_operator.admission.admit import admit
from mirrorflow_operator.api.spec import State
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.status.conditions import Problem, Reason
from tests.unit.operator.observations import mirror_flow, resource

LOOP = Problem(Reason.LOOP_FOUND, "Flows a and b make a loop.")


@pytest.mark.parametrize(
    ("requested", "pinned", "offered", "version"),
    [
        ("", "", ("1.1.0", "1.0.0"), "1.1.0"),  # pinned at the first use: the operator's default
        ("", "1.0.0", ("1.1.0", "1.0.0"), "1.0.0"),  # an upgrade of the operator does not replace pods
        ("1.1.0", "1.0.0", ("1.1.0", "1.0.0"), "1.1.0"),  # an upgrade of one flow
        ("1.0.0", "1.1.0", ("1.1.0", "1.0.0"), "1.0.0"),  # a downgrade of one flow
        ("1.1", "", ("1.2.0", "1.1.2", "1.1.10"), "1.1.10"),  # the newest patch release by number
        ("1.1", "1.1.2", ("1.1.3", "1.1.2"), "1.1.3"),  # an upgraded operator offers a newer patch release
        ("1.1", "1.0.4", ("1.1.3", "1.1.2"), "1.1.3"),
        ("1.1", "1.1.2", ("1.1", "1.1.3"), "1.1"),  # an exact tag takes precedence over patch releases
    ],
)
def test_a_flow_keeps_its_version_until_the_spec_changes_it(
    requested: str, pinned: str, offered: tuple[str, ...], version: str
) -> None:
    """The version is spec.version, otherwise the pinned one, otherwise the operator's default."""
    flow = mirror_flow(version=requested)
    admission = admit(resource(flow, status=Status(version=pinned)), versions=offered)

    assert (flow, version, None) == (admission.flow, admission.version, admission.refusal)


@pytest.mark.parametrize(
    ("requested", "pinned"), [("9.0.0", "1.0.0"), ("", "0.9.0"), ("9.0", "1.0.0"), ("1.1", "1.1.4")]
)
def test_a_running_flow_with_an_unknown_version_in_its_spec_keeps_its_version(
    requested: str, pinned: str
) -> None:
    """The rest of the spec applies. The message lists the offered versions."""
    flow = mirror_flow(version=requested)
    admission = admit(resource(flow, status=Status(version=pinned)), versions=("1.1.0", "1.0.0"))

    assert (flow, pinned, False) == (admission.flow, admission.version, admission.has_conflict)
    assert admission.refusal is not None
    assert Reason.UNKNOWN_VERSION is admission.refusal.reason
    assert "1.1.0, 1.0.0" in admission.refusal.message
    assert f"keeps version {pinned}" in admission.refusal.message


def test_a_new_flow_with_an_unknown_version_is_not_started() -> None:
    """No image is known for this version."""
    admission = admit(resource(mirror_flow(version="9.0.0")), versions=("1.1.0", "1.0.0"))

    assert (None, "") == (admission.flow, admission.version)
    assert admission.refusal is not None
    assert "Nothing is started" in admission.refusal.message


def test_a_conflicting_flow_is_planned_as_stopped() -> None:
    """Its pods are deleted. Its other objects stay, with the version that it would run."""
    admission = admit(resource(status=Status(version="1.0.0")), versions=("1.1.0", "1.0.0"), conflict=LOOP)

    assert admission.flow is not None
    assert (State.STOPPED, "1.0.0", LOOP) == (admission.flow.spec.state, admission.version, admission.refusal)
    assert admission.has_conflict


def test_a_conflicting_flow_keeps_an_unknown_version() -> None:
    """Its objects must not change to a version that no user chose."""
    admission = admit(resource(status=Status(version="0.9.0")), versions=("1.1.0", "1.0.0"), conflict=LOOP)

    assert "0.9.0" == admission.version
