"""The totals of a seed are the sums over its drivers, including those that no longer exist."""

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


def running(number: int, records: int) -> ObservedPod:
    """Returns a running driver that has copied *records*."""
    figures = seed_reading(records=records, bytes=records * BYTES_EACH)
    return driver(name=f"driver-{number}", uid=f"uid-{number}", created_s=NOW_S + number, reading=figures)


def ended(number: int, records: int) -> ObservedPod:
    """Returns a driver that has ended with *records* in its last report."""
    last = {"version": 1, "job": "seed", "records": records, "bytes": records * BYTES_EACH}
    return replace(
        running(number, 0), phase="Failed", ready=False, reading=None, terminated_message=json.dumps(last)
    )


def status_after(before: SeedStatus | None, *pods: ObservedPod, **changes: Any) -> SeedStatus:
    """Returns the seed's status after the status *before*, if the Job has *pods*."""
    seed_job = replace(job(), pods=pods, **changes)
    status = seed_status(
        observed(resource=resource(FLOW, status=Status(seed=before)), jobs=(seed_job,)), FLOW
    )
    assert status is not None
    return status


def figures(status: SeedStatus) -> tuple[int, int]:
    return status.records, status.bytes


def test_totals_continue_with_the_next_driver() -> None:
    """The last report of the first driver is included, although it was not polled."""
    first = status_after(None, running(1, 100))
    second = status_after(first, ended(1, 150), running(2, 0))
    third = status_after(second, running(2, 30))

    assert (100, 1_000) == figures(first)
    assert (150, 1_500) == figures(second)
    assert (180, 1_800) == figures(third)


def test_a_driver_without_a_report_does_not_change_the_totals() -> None:
    first = status_after(None, running(1, 100))

    assert (100, 1_000) == figures(
        status_after(first, driver(name="driver-2", uid="uid-2", created_s=NOW_S + 2))
    )
    assert (100, 1_000) == figures(status_after(first, outcome="Complete"))


def test_a_driver_is_not_counted_twice() -> None:
    """Its pod may exist longer than that of the next driver."""
    first = status_after(None, running(1, 100))
    second = status_after(first, ended(1, 100), running(2, 30))

    assert (130, 1_300) == figures(status_after(second, ended(1, 100)))


def test_totals_of_an_earlier_release_belong_to_the_running_driver() -> None:
    """Such a status does not show which driver its figures are from."""
    assert (120, 1_200) == figures(
        status_after(SeedStatus(run_id="1", phase="Running", records=100, bytes=1_000), running(1, 120))
    )


def test_a_new_run_starts_at_zero() -> None:
    done = status_after(None, ended(1, 100)).model_copy(update={"run_id": "0"})

    assert (7, 70) == figures(status_after(done, running(2, 7)))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("copies"), st.integers(0, 1_000)),
            st.tuples(
                st.sampled_from(["next driver", "pod deleted", "write held back", "operator restarted"]),
                st.just(0),
            ),
        ),
        max_size=40,
    )
)
def test_each_record_is_counted_once(events: list[tuple[str, int]]) -> None:
    """Drivers replace each other, pods are deleted, writes are held back and the operator restarts, in any order."""
    copied, present, written = [0], [0], None
    for event, number in events:
        if event == "copies":
            copied[-1] += number
        elif event == "next driver":
            copied.append(0)
            present.append(len(copied) - 1)
        pods = [
            running(index, copied[index]) if index == len(copied) - 1 else ended(index, copied[index])
            for index in present
        ]
        current = status_after(written, *pods)

        assert (sum(copied), sum(copied) * BYTES_EACH) == figures(current)
        if event != "write held back":
            written = SeedStatus.model_validate(current.model_dump(by_alias=True))
        if event == "pod deleted":  # after its report was read and written
            present = present[-1:]
