"""The operator parses arbitrary responses to GET /progress, including those of an older release."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrorflow_core.reports import GroupsReport, SideReport
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.status.assess import assess
from mirrorflow_operator.status.pod_reports import (
    BODY_MAX_BYTES,
    NUMBER_MAX,
    REASONS_MAX,
    Checkpoints,
    MissingReference,
    PollFailure,
    Reading,
    Replicating,
    SideReachability,
    Summary,
    parse_reading,
)
from mirrorflow_replicator.http import progress
from tests.unit.http.reports import NOW_S, connector, content, partition, task, view
from tests.unit.operator.observations import observed

# A response of the replicator before it reported its clusters.
PREVIOUS_RELEASE = (
    b'{"version":1,"connector":"MirrorSourceConnector","flow":"east-to-west","state":"RUNNING","uptimeSeconds":61.5,'
    b'"tasks":{"total":1,"running":1,"failed":0},"partitions":{"total":3,"starting":0,"copying":3,"waiting":0,'
    b'"stopped":0,"behindStart":0},"caughtUp":true,"lagRecords":0,"lagSeconds":0.0,"recordsPerSecond":12.5,'
    b'"bytesPerSecond":1250.0,"records":9000,"bytes":900000,"batches":{"raw":90,"coalesced":0,"reencoded":0},'
    b'"skippedRecords":0,"lostRecords":0,"losses":0,"refusedWrites":0,"guarantee":{"exactly-once":3,'
    b'"at-least-once":0},"reasons":[],"warnings":0,"refusedSettings":0,"replicating":"Advancing"}'
)


def _summary(report) -> Summary:
    reading = parse_reading(content(progress.respond({}, view(report))), read_at_s=1.0)
    assert reading.summary is not None, reading
    return reading.summary


def test_the_operator_reads_the_replicators_summary() -> None:
    report = replace(
        connector(task(partition(), state="RUNNING")),
        source=SideReport(reason="", since_s=NOW_S - 50, cluster_id="east-id"),
        target=SideReport(reason="AuthenticationFailed", message="Cluster west: no.", since_s=NOW_S - 40),
        missing=(f"{POD_LAYOUT.secrets}/east-mirror", "password"),
        groups=GroupsReport(selected=4, failing=1, passed_s=NOW_S - 30, interval_s=60.0),
    )
    operator_summary = _summary(report)

    assert (SideReachability.REACHABLE, None, 50.0, "east-id") == (
        operator_summary.source.reach,
        operator_summary.source.reason,
        operator_summary.source.since_s,
        operator_summary.source.cluster_id,
    )
    assert (SideReachability.UNREACHABLE, "AuthenticationFailed", "Cluster west: no.", 40.0) == (
        operator_summary.target.reach,
        operator_summary.target.reason,
        operator_summary.target.message,
        operator_summary.target.since_s,
    )
    assert MissingReference(name="east-mirror", key="password") == operator_summary.missing
    assert Checkpoints(groups=4, failing=1, age_s=30.0, interval_s=60.0) == operator_summary.checkpoints
    assert (1, 10, Replicating.STUCK, "RUNNING") == (
        operator_summary.partitions,
        operator_summary.lag_records,
        operator_summary.replicating,
        operator_summary.state,
    )


def test_a_missing_file_outside_the_mounts_is_not_reported_as_a_secret() -> None:
    """Only paths below the mounts of Secrets and ConfigMaps are reported."""
    paths = ["/etc/east-mirror", f"{POD_LAYOUT.secrets}/..", f"{POD_LAYOUT.secrets}/a/b", "east-mirror", "/"]

    assert [None] * 5 == [_summary(connector(missing=(path, "key"))).missing for path in paths]
    certificate = _summary(connector(missing=(f"{POD_LAYOUT.config_maps}/east-ca", "ca.crt"))).missing
    assert MissingReference(name="east-ca", key="ca.crt", is_secret=False) == certificate


def test_a_summary_of_the_previous_release_is_read() -> None:
    """Absent fields are unknown."""
    operator_summary = parse_reading(PREVIOUS_RELEASE, read_at_s=1.0).summary

    assert operator_summary is not None
    assert (SideReachability.UNKNOWN, Replicating.ADVANCING, 3, 12.5) == (
        operator_summary.source.reach,
        operator_summary.replicating,
        operator_summary.partitions,
        operator_summary.records_per_s,
    )
    assert (
        assess(observed({"reading": Reading(read_at_s=observed().now_s, summary=operator_summary)}))
        .status.conditions[0]
        .status.value
        == "True"
    )


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (b"", PollFailure.UNREADABLE),
        (b"[]", PollFailure.UNREADABLE),
        (b'{"version":"1"}', PollFailure.UNREADABLE),
        (b'{"version":true}', PollFailure.UNREADABLE),
        (b'{"version":2}', PollFailure.UNKNOWN_VERSION),
        (b'{"version":1%s}' % (b"0" * 4080), PollFailure.UNKNOWN_VERSION),
        (b"[" * BODY_MAX_BYTES, PollFailure.UNREADABLE),
        (b'{"version":1,"a":"%s"}' % (b"x" * BODY_MAX_BYTES), PollFailure.UNREADABLE),
        (b'{"version":1}\xff', PollFailure.UNREADABLE),
    ],
)
def test_an_invalid_summary_is_unreadable(body: bytes, failure: PollFailure) -> None:
    """The reading has the kind of failure and a description of it."""
    reading = parse_reading(body, read_at_s=1.0)

    assert (None, failure) == (reading.summary, reading.failure)
    assert reading.problem


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
_keys = [*sorted(json.loads(PREVIOUS_RELEASE)), "source", "target", "missing", "checkpoints"]
_hostile = st.dictionaries(st.sampled_from(_keys), _json, max_size=8).map(
    lambda value: {**value, "version": 1}
)


@given(_hostile)
@example({"version": 1, "lagRecords": float("inf"), "uptimeSeconds": float("nan"), "lagSeconds": 10**4000})
@example({"version": 1, "replicating": ["Idle"], "source": {"reach": {}}, "missing": {"path": "/" * 4000}})
@example(
    {
        "version": 1,
        "reasons": [{"reason": "A" * 65}, {"reason": "a\nb", "count": -1}, 3, {"reason": "Ok"}] * 9,
    }
)
def test_any_summary_gives_a_bounded_status(value: dict[str, object]) -> None:
    """Names are short, numbers are in range, and messages are printable."""
    reading = parse_reading(json.dumps(value).encode(), read_at_s=observed().now_s)
    if reading.summary is None:
        return
    operator_summary = reading.summary
    assert len(operator_summary.reasons) <= REASONS_MAX
    assert all(name.isalnum() and len(name) <= 64 for name, _, _ in operator_summary.reasons)
    numbers = [
        operator_summary.lag_records,
        operator_summary.uptime_s,
        operator_summary.records_per_s,
        *(reason.number for reason in operator_summary.reasons),
    ]
    assert all(0 <= number <= NUMBER_MAX for number in numbers)
    status = assess(observed({"reading": reading})).status
    assert all(condition.message.isprintable() for condition in status.conditions)


@given(st.binary(max_size=BODY_MAX_BYTES + 10))
def test_any_bytes_give_a_reading_or_a_failure(body: bytes) -> None:
    """A different program may listen on the port."""
    reading = parse_reading(body, read_at_s=1.0)

    assert (reading.summary is None) != (reading.failure is None)
