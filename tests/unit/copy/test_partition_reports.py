"""A task report leaves its process whole, in one line, and has what holds for each partition now."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.copying.partition import CopierState
from mirrorflow_core.errors import CorruptBatchError
from mirrorflow_core.reports import Guarantee, PartitionPhase, PartitionReport, TaskReport
from mirrorflow_replicator.copy.partition_reports import (
    decode_report,
    encode_report,
)
from mirrorflow_replicator.copy.partition_reports import partition_report as report_at
from tests.unit.core.copying.stubs import begun_copier, new_copier, new_session, send
from tests.unit.core.copying.test_batch_packer import WHEN, small
from tests.unit.core.wire.strategies import batch_of

REPORTS = st.builds(
    TaskReport,
    task=st.integers(0, 99),
    state=st.sampled_from(["RUNNING", "FAILED", "UNASSIGNED"]),
    trace=st.text(max_size=30),
    partitions=st.lists(
        st.builds(
            PartitionReport,
            topic=st.text(max_size=9),
            target_topic=st.text(max_size=9),
            partition=st.integers(0, 999),
            phase=st.sampled_from(PartitionPhase),
            source_offset=st.integers(-1, 2**63 - 1),
            record_age_ms=st.floats(-1, 1e15),
            guarantee=st.sampled_from(Guarantee),
            reached_start_end=st.booleans(),
            message=st.text(max_size=30),
        ),
        max_size=3,
    ).map(tuple),
    errors=st.dictionaries(st.text(max_size=9), st.integers(0, 2**40), max_size=3),
    throttle_ms=st.integers(0, 2**40),
    refused_settings=st.lists(st.text(max_size=9), max_size=3).map(tuple),
)


@given(REPORTS)
def test_a_report_is_decoded_as_it_was_encoded(report):
    """In one line, whatever is in its texts."""
    line = encode_report(report)

    assert report == decode_report(line)
    assert (1, b"\n") == (line.count(b"\n"), line[-1:])


NOW_MS = WHEN + 5_000


def partition_report(copier):
    return report_at(copier, NOW_MS)


def copier_that_copies(*, unfenced_reason=""):
    """A copier that has begun at source offset 100, and holds a batch of three records."""
    copier = begun_copier(NOW_MS, new_session(unfenced_reason=unfenced_reason))
    copier.packer.add(batch_of(small(3), base_offset=100))
    return copier


def test_what_was_sent_is_not_reported_before_it_is_acknowledged():
    """A status is never a guess."""
    copier = copier_that_copies()
    copier.note_end(103, is_start=True)
    send(copier, NOW_MS)

    sent = partition_report(copier)
    copier.acknowledged(40, -1, NOW_MS)
    delivered = partition_report(copier)

    assert (100, 0, 0, False) == (
        sent.source_offset,
        sent.target_offset,
        sent.records,
        sent.reached_start_end,
    )
    assert (103, 43, 3, True) == (
        delivered.source_offset,
        delivered.target_offset,
        delivered.records,
        delivered.reached_start_end,
    )
    assert (WHEN + 2, 4_998) == (delivered.record_timestamp_ms, delivered.latency_ms)
    assert (1, 0, 0) == (delivered.batches_raw, delivered.batches_coalesced, delivered.batches_reencoded)


def test_a_copier_that_has_not_begun_reports_unknown_offsets():
    """Unknown is -1, never 0, which would be a lag of everything."""
    report = partition_report(new_copier(new_session()))

    assert (PartitionPhase.STARTING, -1, -1, -1, False) == (
        report.phase,
        report.source_offset,
        report.source_end_offset,
        report.target_offset,
        report.reached_start_end,
    )
    assert ("orders", "east.orders", 2) == (report.topic, report.target_topic, report.partition)


def test_a_stopped_copier_reports_why():
    """The sentence that names the topic, and its reason for machines."""
    copier = copier_that_copies()
    error = CorruptBatchError(topic="orders", partition=2, offset=5, problem="its checksum does not hold")

    copier.stop(error)

    report = partition_report(copier)
    assert (PartitionPhase.STOPPED, "CorruptBatch", str(error)) == (
        report.phase,
        report.reason,
        report.message,
    )


@pytest.mark.parametrize("state", CopierState)
def test_every_state_has_a_phase(state):
    copier = copier_that_copies()
    copier.state = state

    assert partition_report(copier).phase in PartitionPhase


def test_a_partition_that_is_given_up_is_reported_as_copying():
    copier = copier_that_copies()
    copier.leave()

    assert partition_report(copier).phase is PartitionPhase.COPYING


def test_a_resync_is_reported_as_copying():
    """A resync lasts a round trip; a status that flickered with each would be useless."""
    copier = copier_that_copies()
    send(copier, NOW_MS)
    copier.acknowledged(0, -1, NOW_MS)
    copier.resync()

    assert PartitionPhase.COPYING is partition_report(copier).phase


@pytest.mark.parametrize(
    ("why", "guarantee"),
    [("", Guarantee.EXACTLY_ONCE), ("an ACL is missing", Guarantee.AT_LEAST_ONCE)],
)
def test_the_guarantee_depends_on_whether_other_writers_are_fenced(why, guarantee):
    report = partition_report(copier_that_copies(unfenced_reason=why))

    assert (report.guarantee, report.guarantee_reason) == (guarantee, why)


def test_a_report_holds_no_payload():
    """Every field is a number, a name or a sentence of ours."""
    assert not {field.name for field in fields(PartitionReport)} & {"key", "value", "headers"}
