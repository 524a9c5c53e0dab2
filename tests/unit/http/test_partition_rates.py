"""Rates cover a window.

While a rate limit holds a task for longer than the window, they cover the time between deliveries.
"""

from dataclasses import replace

import pytest

from mirrorflow_replicator.http.partition_rates import WINDOW_S, Samples
from mirrorflow_replicator.http.progress import summary
from tests.unit.http.reports import connector, partition, task, view

NAME = "A->B.source"
PERIOD_S = 51.0  # one batch of 1 MiB at 20 KiB/s
BATCH = 1 << 20
LIMIT = BATCH / PERIOD_S
STEP_S = 0.5  # the time between two reports of a task


def delivered(
    samples: Samples, until_s: float, *, partitions: int = 1, is_limited: bool = True
) -> list[float]:
    """Reports one batch of `BATCH` each `PERIOD_S`, to each partition in turn.

    Returns the rate in bytes for each second.
    """
    rates = []
    for step in range(int(until_s / STEP_S)):
        now_s = step * STEP_S
        batches = 1 + int(now_s / PERIOD_S)
        parts = [
            partition(
                number,
                records=10 * (share := (batches + partitions - 1 - number) // partitions),
                bytes=BATCH * share,
                source_offset=10 * share,
                source_end_offset=10_000,
            )
            for number in range(partitions)
        ]
        samples.observe(NAME, task(*parts, is_rate_limited=is_limited), now_s)
        if step % 2:
            rate = samples.rate_of_tasks(NAME, now_s)
            rates.append(0.0 if rate is None else rate.bytes)
    return rates


@pytest.mark.parametrize("partitions", [1, 16])
def test_a_flow_held_by_its_limit_for_longer_than_a_window_shows_the_rate_of_its_limit(partitions: int):
    """It shows neither 0 between two batches nor a multiple of the limit after a batch."""
    rates = delivered(Samples(), 8 * PERIOD_S, partitions=partitions)

    settled = rates[int(2 * PERIOD_S) :]
    assert settled == pytest.approx([LIMIT] * len(settled), rel=0.05)


def test_a_partition_held_by_its_limit_shows_the_rate_of_its_limit():
    samples = Samples()
    delivered(samples, 4 * PERIOD_S + WINDOW_S + 10)

    rate = samples.rate(NAME, "orders", 0, 4 * PERIOD_S + WINDOW_S + 10)

    assert rate.bytes == pytest.approx(LIMIT, rel=0.05)


def test_the_rate_of_a_limited_flow_that_stops_copying_decreases_and_ends_with_the_limit():
    samples = Samples()
    delivered(samples, 4 * PERIOD_S)
    end_s = 4 * PERIOD_S

    for later_s in range(1, 200):
        samples.observe(NAME, task(is_rate_limited=True), end_s + later_s)
    late = samples.rate_of_tasks(NAME, end_s + 200)
    ended = samples.rate_of_tasks(NAME, end_s + 200 + WINDOW_S + 1)

    assert late is not None
    assert late.bytes < LIMIT / 2
    assert ended is None
    assert samples.rate(NAME, "orders", 0, end_s + 200 + WINDOW_S + 1).bytes == 0


def test_a_task_that_no_longer_reports_is_not_part_of_the_rate():
    """A rebalance has moved the task to another node, whose samples now contain it."""
    samples = Samples()
    until_s = int(4 * PERIOD_S)
    for second in range(until_s):
        batches = 1 + int(second / PERIOD_S)
        for number in range(2):
            if number and second > 3 * PERIOD_S:
                continue
            report = partition(
                number,
                records=batches,
                bytes=BATCH * batches,
                source_offset=batches,
                source_end_offset=10_000,
            )
            samples.observe(NAME, replace(task(report, is_rate_limited=True), task=number), float(second))

    rate = samples.rate_of_tasks(NAME, float(until_s))

    assert rate is not None
    assert rate.bytes == pytest.approx(LIMIT, rel=0.05)


def test_a_flow_without_a_limit_that_stops_copying_shows_no_rate_after_a_window():
    samples = Samples()
    delivered(samples, PERIOD_S - 1, is_limited=False)

    assert samples.rate_of_tasks(NAME, PERIOD_S) is None
    assert samples.rate(NAME, "orders", 0, PERIOD_S).bytes == 0


def test_a_limit_that_delays_each_response_briefly_shows_the_rate_of_the_window():
    """Responses within 2 seconds are not separate deliveries.

    The rate of the connector is the sum over its partitions.
    """
    samples = Samples()
    for step in range(120):
        report = partition(records=step, bytes=1_000 * step, source_offset=step, source_end_offset=10_000)
        samples.observe(NAME, task(report, is_rate_limited=True), 2.0 * step)

    assert samples.rate_of_tasks(NAME, 2.0 * 120) is None
    assert samples.rate(NAME, "orders", 0, 2.0 * 120).bytes == pytest.approx(500, rel=0.1)


def test_an_earlier_limit_does_not_affect_the_rate():
    """After an hour without lag, the interval between the last two deliveries is not caused by the limit."""
    samples = Samples()
    delivered(samples, 3 * PERIOD_S)
    batches = 3
    for second in range(60):
        report = partition(
            records=10 * batches + 10, bytes=BATCH * (batches + 1), source_offset=40, source_end_offset=10_000
        )
        samples.observe(NAME, task(report, is_rate_limited=True), 3_600.0 + second)

    rate = samples.rate_of_tasks(NAME, 3_600.0 + PERIOD_S)

    assert rate is not None
    assert rate.bytes == pytest.approx(LIMIT, rel=0.05)


def test_the_summary_of_a_connector_has_the_rate_of_its_tasks():
    """The status of the resource, `mirrorflow status` and the console therefore have it, too."""
    samples = Samples()
    delivered(samples, 4 * PERIOD_S - 1)
    report = connector(
        task(
            partition(records=40, bytes=4 * BATCH, source_offset=40, source_end_offset=10_000),
            is_rate_limited=True,
        )
    )

    shown = summary(report, view(report, samples=samples, monotonic_s=4 * PERIOD_S - 1))

    assert shown["bytesPerSecond"] == pytest.approx(LIMIT, rel=0.05)
    assert shown["replicating"] == "Advancing"
