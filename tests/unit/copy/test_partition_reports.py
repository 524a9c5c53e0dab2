"""A report shows the current state of a partition."""

from dataclasses import fields

import pytest

from mirrorflow_core.copying.partition import CopierState
from mirrorflow_core.errors import CorruptBatchError
from mirrorflow_core.reports import Guarantee, PartitionPhase, PartitionReport
from mirrorflow_replicator.copy.partition_reports import partition_report as report_at
from tests.unit.core.copying.stubs import begun_copier, new_copier, new_session, send
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS, small_records
from tests.unit.core.wire.strategies import batch_of

NOW_MS = TIMESTAMP_MS + 5_000


def partition_report(copier):
    return report_at(copier, NOW_MS)


def copying_copier(*, unfenced_reason=None):
    """A copier at source offset 100 with a queued batch of three records."""
    copier = begun_copier(NOW_MS, new_session(unfenced_reason=unfenced_reason))
    copier.packer.add(batch_of(small_records(3), base_offset=100))
    return copier


def test_sent_records_are_reported_only_after_acknowledgement():
    copier = copying_copier()
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
    assert (TIMESTAMP_MS + 2, 4_998) == (delivered.record_timestamp_ms, delivered.latency_ms)
    assert (1, 0, 0) == (delivered.batches_raw, delivered.batches_coalesced, delivered.batches_reencoded)


def test_the_age_of_the_newest_record_is_reported_when_it_is_sent():
    copier = copying_copier()

    send(copier, NOW_MS)

    assert partition_report(copier).record_age_ms == 4_998


def test_a_copier_that_has_not_begun_reports_unknown_offsets():
    """Unknown is None. Zero would show the whole topic as lag."""
    report = partition_report(new_copier(new_session()))

    assert (PartitionPhase.STARTING, None, None, None, False) == (
        report.phase,
        report.source_offset,
        report.source_end_offset,
        report.target_offset,
        report.reached_start_end,
    )
    assert ("orders", "east.orders", 2) == (report.topic, report.target_topic, report.partition)


def test_a_stopped_copier_reports_the_reason():
    """The report has a message that names the topic, and a machine-readable reason."""
    copier = copying_copier()
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
    copier = copying_copier()
    copier.state = state

    assert partition_report(copier).phase in PartitionPhase


def test_a_leaving_partition_is_reported_as_copying():
    copier = copying_copier()
    copier.leave()

    assert partition_report(copier).phase is PartitionPhase.COPYING


def test_a_resync_is_reported_as_copying():
    """A resync takes one round trip. A status that changes with each resync would be useless."""
    copier = copying_copier()
    send(copier, NOW_MS)
    copier.acknowledged(0, -1, NOW_MS)
    copier.resync()

    assert PartitionPhase.COPYING is partition_report(copier).phase


@pytest.mark.parametrize(
    ("unfenced_reason", "guarantee"),
    [(None, Guarantee.EXACTLY_ONCE), ("an ACL is missing", Guarantee.AT_LEAST_ONCE)],
)
def test_the_guarantee_depends_on_fencing(unfenced_reason, guarantee):
    report = partition_report(copying_copier(unfenced_reason=unfenced_reason))

    assert (report.guarantee, report.guarantee_reason) == (guarantee, unfenced_reason)


def test_leader_epochs_and_write_mode_are_reported_once_they_are_known():
    unknown, copier = partition_report(new_copier(new_session())), copying_copier()
    copier.cursor.note_leader_epoch(7)
    known = partition_report(copier)

    assert (unknown.source_leader_epoch, unknown.target_leader_epoch, unknown.write_mode) == (
        None,
        None,
        None,
    )
    assert (known.source_leader_epoch, known.target_leader_epoch, known.write_mode) == (7, 0, "plain")


def test_a_report_holds_no_payload():
    assert not {field.name for field in fields(PartitionReport)} & {"key", "value", "headers"}
