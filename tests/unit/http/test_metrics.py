"""The exposition is parsed back by a strict parser; names and labels are MM2's."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.reports import HeartbeatReport, PartitionPhase
from mirrorflow_core.settings import MetricsLevel
from mirrorflow_replicator.http import metrics
from tests.unit.http.reports import NOW_S, connector, moved, partition, task, view

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (-?[0-9.e+-]+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
MM2 = "kafka_connect_mirror_mirrorsourceconnector_"


def parse(text):
    """Samples by name and labels; fails on whatever the format forbids."""
    assert text.endswith("\n")
    found, typed, family = {}, {}, ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in typed, f"{family} comes twice"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            assert kind in {"gauge", "counter"}
            # MM2's own counts are gauges in the exporter's rules, and the sum of a JVM's is one.
            assert (kind == "counter") == name.endswith(("_total", "_seconds_sum"))
            typed[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == family, f"{line} is outside its family"
            labels = match[2] or ""
            pairs = LABEL.findall(labels)
            assert labels == ",".join(f'{name}="{value}"' for name, value in pairs)
            key = (
                match[1],
                frozenset((name, re.sub(r"\\.", lambda m: UNESCAPED[m[0]], value)) for name, value in pairs),
            )
            assert key not in found, f"{line} comes twice"
            found[key] = float(match[3])
    return found


def exposition(*connectors, **changes):
    return parse("".join(metrics.render(view(*connectors, **changes))))


def value(found, name, **labels):
    [only] = [
        number
        for (known, pairs), number in found.items()
        if known == name and labels.items() <= dict(pairs).items()
    ]
    return only


REPORT = connector(
    task(
        partition(0, latency_ms=5, record_age_ms=3, batches_raw=7, refused_writes=1),
        partition(1, lost_records=4, source_offset=100),
        partition(0, "other", phase=PartitionPhase.STOPPED, reason="RecordTooLarge"),
        errors={"RecordTooLarge": 2},
        throttle_ms=11,
    )
)


def test_partitions_have_mm2s_names_and_labels():
    """Each of MM2's metrics is there with source, target, topic (the target's) and partition, and nothing else."""
    found = exposition(REPORT, samples=moved(REPORT))
    where = {"source": "A", "target": "B", "topic": "A.orders", "partition": "0"}

    expected = {
        "record_count": 90,
        "record_rate": 9,
        "byte_count": 800,
        "byte_rate": 80,
        **{"record_age_ms" + end: 3 for end in ("", "_min", "_max", "_avg")},
        **{"replication_latency_ms" + end: 5 for end in ("", "_min", "_max", "_avg")},
    }
    assert expected == {name: found[MM2 + name, frozenset(where.items())] for name in expected}


def test_own_metrics():
    """Lag, paths, errors, losses, phases and states."""
    found = exposition(REPORT, samples=moved(REPORT))

    assert value(found, "mirrorflow_record_lag", topic="A.orders", partition="0") == 10
    assert value(found, "mirrorflow_lag_seconds", topic="A.orders", partition="1") == 0
    assert value(found, "mirrorflow_batches_total", path="raw") == 7
    assert value(found, "mirrorflow_lost_records_total") == 4
    assert value(found, "mirrorflow_refused_writes_total") == 1
    assert value(found, "mirrorflow_errors_total", reason="RecordTooLarge") == 2
    assert value(found, "mirrorflow_throttle_ms_total") == 11
    assert value(found, "mirrorflow_partitions", phase="stopped") == 1
    assert value(found, "mirrorflow_guarantee", guarantee="exactly-once") == 3
    assert value(found, "mirrorflow_partition_phase", phase="stopped", topic="A.other") == 1
    assert value(found, "kafka_connect_connector_status", status="running", task="0") == 1


def test_stalled_partitions_are_counted_by_reason_at_every_level():
    """A reason that no partition has is 0, so that an alert sees it end; an error's reason is shown while it lasts."""
    stalled = [
        partition(number, reason=reason, stalled_since_ms=1)
        for number, reason in enumerate(["WritesRefused", "WritesRefused", "Unreachable"])
    ]
    report = connector(
        task(*stalled, partition(3), partition(4, phase=PartitionPhase.STOPPED, reason="TopicGone"))
    )

    found = exposition(report, metrics_level=MetricsLevel.FLOW)

    assert value(found, "mirrorflow_partitions_stalled", reason="WritesRefused") == 2
    assert value(found, "mirrorflow_partitions_stalled", reason="Unreachable") == 1
    assert value(found, "mirrorflow_partitions_stalled", reason="NoDecision") == 0


def test_the_longest_stall_of_each_reason_has_its_age():
    """An alert on it waits as long as the reason may last, whichever partition has it."""
    stalled = [
        partition(number, reason="OpenTransaction", stalled_since_ms=round(1000 * (NOW_S - age_s)))
        for number, age_s in enumerate([40.0, 901.5])
    ]

    found = exposition(connector(task(*stalled, partition(3))), metrics_level=MetricsLevel.FLOW)

    assert value(found, "mirrorflow_stalled_seconds", reason="OpenTransaction") == 901.5
    assert value(found, "mirrorflow_stalled_seconds", reason="WritesRefused") == 0


@pytest.mark.parametrize(
    ("level", "rows"), [(MetricsLevel.FLOW, 1), (MetricsLevel.TOPIC, 2), (MetricsLevel.PARTITION, 3)]
)
def test_levels_sum_up(level, rows):
    """Whatever the level, the counts add up to the same; ages are the worst."""
    found = exposition(REPORT, samples=moved(REPORT), metrics_level=level)
    counts = [number for (name, _), number in found.items() if name == MM2 + "record_count"]
    ages = [number for (name, _), number in found.items() if name == MM2 + "record_age_ms_max"]

    assert (rows, 270.0, [3.0]) == (len(counts), sum(counts), ages)


def test_nothing_to_tell_is_an_exposition_too():
    """A process without connectors, or with one that has no task, is scraped without an error."""
    assert value(exposition(), "kafka_connect_worker_task_count") == 0
    assert value(exposition(connector()), "mirrorflow_partitions", phase="copying") == 0


@given(st.text(st.characters(codec="utf-8")))
def test_labels_survive(text):
    """Any text in a label comes back as it was."""
    key = ("n", frozenset({("a", text), ("b", "1")}))

    assert {key: 1.0} == parse("# HELP n x\n# TYPE n gauge\nn" + metrics.labels({"a": text, "b": 1}) + " 1\n")


def test_five_thousand_partitions_in_pieces():
    """A large exposition comes in pieces of bounded size, in a time a scrape does not notice."""
    report = connector(task(*(partition(n, latency_ms=5, record_age_ms=3) for n in range(5000))))
    state = view(report, samples=moved(report))
    begin = time.process_time()
    pieces = list(metrics.render(state))
    took = time.process_time() - begin

    assert max(len(piece) for piece in pieces) < 500_000
    assert took < 1.0  # a tenth of that on a quiet machine; this guards against a square, not a percent


def test_a_heartbeat_grows_old_while_nothing_newer_arrives():
    """By the time it was written, whatever the level of the other metrics; without one there is no line."""
    beat = HeartbeatReport(cluster="B", topic="A.heartbeats", timestamp_ms=int(NOW_S * 1000) - 2_500)
    levels = [
        exposition(connector(task(), heartbeats=(beat,)), metrics_level=level) for level in MetricsLevel
    ]
    name = "mirrorflow_heartbeat_age_seconds"

    for found in levels:
        assert 2.5 == value(found, name, cluster="B", topic="A.heartbeats", source="A", target="B", flow="f")
    assert [] == [key for key in exposition(connector(task())) if key[0] == name]
