"""Totals of a seed: the sum over its drivers, whichever of them still exist."""

import json
from dataclasses import replace
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.api.status import SeedStatus, Status
from mirrorflow_operator.status.observation import ObservedPod
from mirrorflow_operator.status.spark_jobs import seed_status
from tests.unit.operator.observations import (
    NOW_S,
    driver,
    job,
    mirror_flow,
    observed,
    resource,
    seed_reading,
)

FLOW: Final = mirror_flow(seed={"runId": "1"})
BYTES_EACH: Final = 10


def at_work(number: int, records: int) -> ObservedPod:
    """The driver of that number, which has copied *records*."""
    figures = seed_reading(records=records, bytes=records * BYTES_EACH)
    return driver(name=f"driver-{number}", uid=f"uid-{number}", created_s=NOW_S + number, reading=figures)


def ended(number: int, records: int) -> ObservedPod:
    """As `at_work`, after its process has ended with its last figures."""
    last = {"version": 1, "job": "seed", "records": records, "bytes": records * BYTES_EACH}
    return replace(
        at_work(number, 0), phase="Failed", ready=False, reading=None, terminated_message=json.dumps(last)
    )


def status_after(before: SeedStatus | None, *pods: ObservedPod, **changes: Any) -> SeedStatus:
    """The seed's status after *before*, where the Job has *pods*."""
    seen = replace(job(), pods=pods, **changes)
    found = seed_status(observed(resource=resource(FLOW, status=Status(seed=before)), jobs=(seen,)), FLOW)
    assert found is not None
    return found


def figures(status: SeedStatus) -> tuple[int, int]:
    return status.records, status.bytes


def test_totals_continue_with_the_next_driver() -> None:
    """The first driver's last report counts, though it was not polled any more."""
    first = status_after(None, at_work(1, 100))
    second = status_after(first, ended(1, 150), at_work(2, 0))
    third = status_after(second, at_work(2, 30))

    assert (100, 1_000) == figures(first)
    assert (150, 1_500) == figures(second)
    assert (180, 1_800) == figures(third)


def test_a_driver_without_a_report_changes_no_total() -> None:
    first = status_after(None, at_work(1, 100))

    assert (100, 1_000) == figures(
        status_after(first, driver(name="driver-2", uid="uid-2", created_s=NOW_S + 2))
    )
    assert (100, 1_000) == figures(status_after(first, outcome="Complete"))


def test_an_older_driver_is_not_counted_twice() -> None:
    """Its pod may outlive that of the driver after it."""
    first = status_after(None, at_work(1, 100))
    second = status_after(first, ended(1, 100), at_work(2, 30))

    assert (130, 1_300) == figures(status_after(second, ended(1, 100)))


def test_totals_of_an_earlier_release_belong_to_the_running_driver() -> None:
    """It does not say which driver its figures are of."""
    assert (120, 1_200) == figures(
        status_after(SeedStatus(run_id="1", phase="Running", records=100, bytes=1_000), at_work(1, 120))
    )


def test_another_run_starts_at_zero() -> None:
    done = status_after(None, ended(1, 100)).model_copy(update={"run_id": "0"})

    assert (7, 70) == figures(status_after(done, at_work(2, 7)))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("copies"), st.integers(0, 1_000)),
            st.tuples(st.sampled_from(["next", "forgotten", "held", "restarted"]), st.just(0)),
        ),
        max_size=40,
    )
)
def test_every_record_is_counted_once(moments: list[tuple[str, int]]) -> None:
    """Drivers follow each other, pods go, writes are held back, and the operator begins anew, in any order."""
    copied, present, written = [0], [0], None
    for what, number in moments:
        if what == "copies":
            copied[-1] += number
        elif what == "next":
            copied.append(0)
            present.append(len(copied) - 1)
        pods = [at_work(at, copied[at]) if at == len(copied) - 1 else ended(at, copied[at]) for at in present]
        now = status_after(written, *pods)

        assert (sum(copied), sum(copied) * BYTES_EACH) == figures(now)
        if what != "held":
            written = SeedStatus.model_validate(now.model_dump(by_alias=True))
        if what == "forgotten":  # what is deleted was read and written before
            present = present[-1:]
