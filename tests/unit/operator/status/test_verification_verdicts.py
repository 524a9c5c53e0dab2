"""The verdict of an ended verification in the status, and the one that a switchover requires."""

import pytest

from mirrorflow_core.switchover.last_verification import LastVerification
from mirrorflow_operator.api.status import ConditionStatus, RunPhase, Status, VerifyStatus, WindowCounts
from mirrorflow_operator.api.timestamps import timestamp
from mirrorflow_operator.plan.spark_run import RunKind
from mirrorflow_operator.status.conditions import Finding, Reason
from mirrorflow_operator.status.verification import last_verification, verified
from tests.unit.operator.observations import NOW_S, job, mirror_flow, observed

JOB = "east-to-west-verify-5e6f7a8b"


def ended(windows: WindowCounts) -> VerifyStatus:
    return VerifyStatus(
        phase=RunPhase.SUCCEEDED.value,
        job=JOB,
        run_id="1",
        windows=windows,
        verdict_time=timestamp(NOW_S),
    )


def finding(windows: WindowCounts) -> Finding:
    flow = mirror_flow(verify={"runId": "1"})
    run = job(name=JOB, kind=RunKind.VERIFY, run_id="1", outcome="Complete", ended_s=NOW_S)
    result = verified(observed(flow=flow, jobs=(run,)), flow, ended(windows))
    assert result is not None
    return result


def test_a_verification_whose_windows_are_all_equal_is_equal():
    windows = WindowCounts(total=4, equal=4)

    assert (ConditionStatus.TRUE, Reason.EQUAL) == (finding(windows).status, finding(windows).reason)
    assert LastVerification(run="1", ended_ms=int(NOW_S) * 1000, is_equal=True) == last_verification(
        Status(verify=ended(windows))
    )


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (WindowCounts(), "No window was compared: the topics have no records, or the sample selects none."),
        (
            WindowCounts(total=100, equal=40),
            "40 of 100 windows are equal, 0 records; 60 could not be compared.",
        ),
        (
            WindowCounts(total=100, equal=98, undecided=2),
            "98 of 100 windows are equal, 0 records; 2 could not be compared.",
        ),
    ],
    ids=["nothing-compared", "compared-in-part", "undecided"],
)
def test_a_verification_that_did_not_compare_all_its_windows_is_not_equal(
    windows: WindowCounts, message: str
):
    """Small topics may have no window in a sample. Such a run does not allow a switchover."""
    result = finding(windows)

    assert (ConditionStatus.UNKNOWN, Reason.UNDECIDED, message) == (
        result.status,
        result.reason,
        result.message,
    )
    assert last_verification(Status(verify=ended(windows))) is None
