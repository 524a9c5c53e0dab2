"""`mirrorflow run` shows rates over the last five seconds instead of the replicator's thirty."""

from mirrorflow_cli.run_progress import Progress, RecentRates


def progress(uptime_s: float, *records: int, connector: str = "C") -> Progress:
    rows = tuple(
        {
            "topic": "t",
            "partition": number,
            "records": count,
            "bytes": 10 * count,
            "recordsPerSecond": 1.0,
            "bytesPerSecond": 1.0,
        }
        for number, count in enumerate(records)
    )
    summary = {"uptimeSeconds": uptime_s, "recordsPerSecond": 1.0, "bytesPerSecond": 1.0}
    return Progress(connector=connector, summary=summary, partitions=rows)


def rates_of(shown: Progress) -> tuple[float, float, list[float]]:
    """Returns the record rate and byte rate of the connector, and the record rate of each partition."""
    partition_rates = [row["recordsPerSecond"] for row in shown.partitions]
    return shown.summary["recordsPerSecond"], shown.summary["bytesPerSecond"], partition_rates


def test_the_rate_covers_the_last_five_seconds():
    """The rate shows a stop or a change of speed within five seconds."""
    rates = RecentRates()
    for second in range(20):
        rates.of(progress(100.0 + second, 1_000 * second, 0))

    assert (1_000.0, 10_000.0, [1_000.0, 0.0]) == rates_of(rates.of(progress(120.0, 20_000, 0)))
    for second in range(1, 5):
        rates.of(progress(120.0 + second, 20_000, 0))
    assert (0.0, 0.0, [0.0, 0.0]) == rates_of(rates.of(progress(125.0, 20_000, 0)))
    assert (500.0, 5_000.0, [500.0, 0.0]) == rates_of(rates.of(progress(126.0, 22_500, 0)))


def test_the_first_rate_of_a_new_process_counts_from_zero():
    """Counts start at zero with the process, so its first report already has a rate."""
    assert (500.0, 5_000.0, [500.0]) == rates_of(RecentRates().of(progress(2.0, 1_000)))


def test_the_first_rate_of_an_older_process_is_zero():
    """Its earlier records were not copied within the last five seconds."""
    assert (0.0, 0.0, [0.0]) == rates_of(RecentRates().of(progress(60.0, 1_000)))


def test_the_rate_restarts_with_a_new_process():
    """A new process counts from zero."""
    rates = RecentRates()
    rates.of(progress(50.0, 7_000))

    assert (100.0, 1_000.0, [100.0]) == rates_of(rates.of(progress(1.0, 100)))


def test_the_rate_of_a_restarted_task_counts_from_zero():
    """The task restarts in a running process: only its partitions count from zero."""
    rates = RecentRates()
    rates.of(progress(50.0, 7_000, 100))

    assert (60.0, 600.0, [50.0, 10.0]) == rates_of(rates.of(progress(52.0, 100, 120)))


def test_connectors_have_separate_rates():
    rates = RecentRates()
    rates.of(progress(50.0, 100, connector="A"))
    rates.of(progress(50.0, 900, connector="B"))

    assert [10.0] == rates_of(rates.of(progress(51.0, 110, connector="A")))[2]
    assert [50.0] == rates_of(rates.of(progress(52.0, 1_000, connector="B")))[2]
