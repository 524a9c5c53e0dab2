"""Rates cover a window, and the time between deliveries while a rate limit holds a task for longer than that."""

from dataclasses import replace

import pytest

from mirrorflow_replicator.http.partition_rates import WINDOW_S, Samples
from mirrorflow_replicator.http.progress import summary
from tests.unit.http.reports import connector, partition, task, view

NAME = "A->B.source"
PERIOD_S = 51.0  # one batch of 1 MiB at 20 KiB/s
BATCH = 1 << 20
LIMIT = BATCH / PERIOD_S
STEP_S = 0.5  # between two reports of a task


def delivered(
    samples: Samples, until_s: float, *, partitions: int = 1, is_limited: bool = True
) -> list[float]:
    """Reports one batch of `BATCH` each `PERIOD_S`, to each partition in turn; returns the bytes a second of each second."""
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
def test_a_flow_that_its_limit_holds_for_longer_than_a_window_shows_the_rate_of_its_limit(partitions: int):
    """Neither 0 between two batches nor a multiple of the limit after one."""
    rates = delivered(Samples(), 8 * PERIOD_S, partitions=partitions)

    settled = rates[int(2 * PERIOD_S) :]
    assert settled == pytest.approx([LIMIT] * len(settled), rel=0.05)


def test_a_partition_that_its_limit_holds_shows_the_rate_of_its_limit():
    samples = Samples()
    delivered(samples, 4 * PERIOD_S + WINDOW_S + 10)

    rate = samples.rate(NAME, "orders", 0, 4 * PERIOD_S + WINDOW_S + 10)

    assert rate.bytes == pytest.approx(LIMIT, rel=0.05)


def test_the_rate_of_a_limited_flow_that_copies_no_more_becomes_less_and_ends_with_the_limit():
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


def test_a_task_that_reports_no_more_is_not_part_of_the_rate():
    """A rebalance has moved it to another node, whose samples have it now."""
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


def test_without_a_limit_a_flow_that_copies_no_more_shows_no_rate_after_a_window():
    samples = Samples()
    delivered(samples, PERIOD_S - 1, is_limited=False)

    assert samples.rate_of_tasks(NAME, PERIOD_S) is None
    assert samples.rate(NAME, "orders", 0, PERIOD_S).bytes == 0


def test_a_limit_that_delays_each_response_shortly_shows_the_rate_of_the_window():
    """Responses of 2 seconds are no deliveries of their own, and the rate of the connector is the sum of its partitions."""
    samples = Samples()
    for step in range(120):
        report = partition(records=step, bytes=1_000 * step, source_offset=step, source_end_offset=10_000)
        samples.observe(NAME, task(report, is_rate_limited=True), 2.0 * step)

    assert samples.rate_of_tasks(NAME, 2.0 * 120) is None
    assert samples.rate(NAME, "orders", 0, 2.0 * 120).bytes == pytest.approx(500, rel=0.1)


def test_an_earlier_limit_does_not_count():
    """After an hour without a lag, the interval between the last two deliveries is not that of the limit."""
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
    """So the resource, `mirrorflow status` and the console have it, too."""
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
