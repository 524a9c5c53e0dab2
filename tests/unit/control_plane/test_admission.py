"""Which version runs, and what the controller is to do with a flow that is not accepted."""

import pytest

from mirrorflow_operator.api.spec import State
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.assess.admission import Refusal, admit
from mirrorflow_operator.assess.reasons import Reason
from tests.unit.control_plane.observations import mirror_flow, resource

LOOP = Refusal(reason=Reason.LOOP_FOUND, message="Flows a and b make a loop.")


@pytest.mark.parametrize(
    ("wanted", "pinned", "offered", "version"),
    [
        ("", "", ("1.1.0", "1.0.0"), "1.1.0"),  # pinned at first use: the operator's default
        ("", "1.0.0", ("1.1.0", "1.0.0"), "1.0.0"),  # an upgraded operator rolls nothing
        ("1.1.0", "1.0.0", ("1.1.0", "1.0.0"), "1.1.0"),  # an upgrade, one flow at a time
        ("1.0.0", "1.1.0", ("1.1.0", "1.0.0"), "1.0.0"),  # and back
    ],
)
def test_a_flow_keeps_its_version_until_it_is_told_another(
    wanted: str, pinned: str, offered: tuple[str, ...], version: str
) -> None:
    """spec.version, else the pinned one, else the operator's default."""
    flow = mirror_flow(version=wanted)
    found = admit(resource(flow, status=Status(version=pinned)), versions=offered)

    assert (flow, version, None) == (found.flow, found.version, found.refusal)


@pytest.mark.parametrize(("wanted", "pinned"), [("9.0.0", "1.0.0"), ("", "0.9.0")])
def test_a_version_that_the_operator_does_not_run_changes_nothing(wanted: str, pinned: str) -> None:
    """What runs is left as it is, and the pin stays; the sentence names what there is."""
    found = admit(
        resource(mirror_flow(version=wanted), status=Status(version=pinned)), versions=("1.1.0", "1.0.0")
    )

    assert (None, pinned) == (found.flow, found.version)
    assert found.refusal is not None
    assert Reason.UNKNOWN_VERSION is found.refusal.reason
    assert "1.1.0, 1.0.0" in found.refusal.message


def test_a_flow_that_must_not_run_beside_another_is_planned_as_stopped() -> None:
    """Its pods go and its objects stay; with the version that it would have."""
    found = admit(resource(status=Status(version="1.0.0")), versions=("1.1.0", "1.0.0"), conflict=LOOP)

    assert found.flow is not None
    assert (State.STOPPED, "1.0.0", LOOP) == (found.flow.spec.state, found.version, found.refusal)
