"""The model leader follows the rules of brokers 3.9.1 and 4.3.1, which the differential test compares."""

import pytest

from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import Record, encode
from tests.model.batches import ABORT, COMMIT, SEQUENCES
from tests.model.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    RefusedError,
)
from tests.model.leader import PartitionLeader
from tests.model.producer_state import KAFKA_3_5, KAFKA_3_9, KAFKA_4

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
PRODUCER_ID = 7


@pytest.fixture
def leader():
    return PartitionLeader(KAFKA_4, {})


def batch(
    sequence,
    count=2,
    *,
    producer=PRODUCER_ID,
    epoch=0,
    time_ms=NOW_MS,
    transactional=False,
    keys=False,
    codec=0,
    size=1,
):
    records = [
        Record(0, time_ms + i, b"k%d" % i if keys else None, b"%d" % (sequence + i) * size)
        for i in range(count)
    ]
    data = encode(
        records,
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return split(data)[0]


def code_of(leader, *arguments, **settings):
    """Returns the error code with which *leader* refuses the batch, or 0 if it appends it."""
    try:
        append(leader, *arguments, **settings)
    except RefusedError as error:
        return error.code
    return 0


def append(leader, *arguments, now_ms=NOW_MS, verified=False, **settings):
    new_batch = batch(*arguments, **settings)
    guard = leader.start_verification(new_batch, now_ms) if new_batch.is_transactional else None
    return leader.append(new_batch, now_ms, guard if verified else None)


def end(leader, kind=COMMIT, epoch=0, now_ms=NOW_MS):
    return leader.append_marker(
        producer_id=PRODUCER_ID, producer_epoch=epoch, kind=kind, coordinator_epoch=0, now_ms=now_ms
    )


def test_an_unknown_producer_may_start_with_any_sequence(leader):
    assert code_of(leader, 500) == 0
    assert code_of(leader, 600) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 502) == 0


def test_a_repeat_of_one_of_the_last_five_batches_gets_the_first_response(leader):
    first = append(leader, 0, time_ms=NOW_MS - 5000)
    repeated = append(leader, 0, time_ms=NOW_MS - 5000)
    for sequence in (2, 4, 6, 8, 10):
        append(leader, sequence)

    assert (first.base_offset, first.log_append_time) == (0, -1)
    assert (repeated.base_offset, repeated.log_append_time, repeated.is_repeat) == (0, NOW_MS - 4999, True)
    assert code_of(leader, 0) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.log.end == 12


def test_a_batch_with_the_sequence_of_a_foreign_batch_is_treated_as_its_repeat(leader):
    append(leader, 0)
    foreign = append(leader, 2, time_ms=NOW_MS - 9000)
    own = append(leader, 2, time_ms=NOW_MS)

    assert own.base_offset == foreign.base_offset
    assert own.log_append_time == NOW_MS - 8999


def test_a_later_epoch_starts_at_zero_and_fences_the_earlier_one(leader):
    append(leader, 0)

    assert code_of(leader, 2, epoch=1) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 0, epoch=1) == 0
    assert code_of(leader, 2) == INVALID_PRODUCER_EPOCH


def test_sequence_numbers_wrap(leader):
    append(leader, SEQUENCES - 3, 4)

    assert leader.producers.producers[PRODUCER_ID].last_sequence == 0
    assert code_of(leader, 1) == 0


def test_after_an_empty_transaction_only_sequence_zero_is_accepted(leader):
    append(leader, 0)
    end(leader, ABORT, epoch=1)

    assert code_of(leader, 2) == INVALID_PRODUCER_EPOCH
    assert code_of(leader, 100, epoch=1) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 0, epoch=1) == 0


def test_producers_expire_by_the_timestamp_of_their_last_record(leader):
    append(leader, 0, time_ms=NOW_MS - DAY_MS)
    leader.expire(NOW_MS, DAY_MS)

    assert PRODUCER_ID in leader.producers.producers, "the second record is one millisecond newer"
    leader.expire(NOW_MS + 1, DAY_MS)
    assert PRODUCER_ID not in leader.producers.producers
    assert code_of(leader, 500) == 0


def test_no_producer_expires_in_a_transaction_and_a_marker_renews_it(leader):
    append(leader, 0, transactional=True, verified=True, time_ms=NOW_MS - 40 * DAY_MS)
    leader.expire(NOW_MS, DAY_MS)
    assert PRODUCER_ID in leader.producers.producers

    end(leader)
    leader.expire(NOW_MS + DAY_MS - 1, DAY_MS)
    assert PRODUCER_ID in leader.producers.producers
    leader.expire(NOW_MS + DAY_MS, DAY_MS)
    assert PRODUCER_ID not in leader.producers.producers


def test_a_refused_transactional_batch_blocks_later_plain_batches(leader):
    """The verification entry of KIP-890 keeps the lowest sequence number until a transactional append or a marker."""
    append(leader, 0)
    assert code_of(leader, 2, transactional=True) == INVALID_TXN_STATE
    assert code_of(leader, 2) == 0
    assert code_of(leader, 4) == OUT_OF_ORDER_SEQUENCE_NUMBER

    end(leader)
    assert code_of(leader, 4) == 0


def test_the_verification_entry_expires_and_does_not_exist_before_3_6(leader):
    code_of(leader, 2, transactional=True)
    leader.expire(NOW_MS + DAY_MS, DAY_MS)
    assert leader.producers.verifications == {}

    old = PartitionLeader(KAFKA_3_5, {})
    append(old, 0)
    assert code_of(old, 2, transactional=True) == 0


def test_a_plain_batch_is_refused_during_a_transaction(leader):
    append(leader, 0, transactional=True, verified=True)

    assert code_of(leader, 2) == INVALID_TXN_STATE
    assert leader.last_stable_offset == 0
    end(leader)
    assert leader.last_stable_offset == leader.log.high_watermark == 3
    assert code_of(leader, 2) == 0


@pytest.mark.parametrize(("rules", "verifies"), [(KAFKA_3_9, True), (KAFKA_4, False)])
def test_since_4_0_an_older_epoch_is_refused_before_verification(rules, verifies):
    leader = PartitionLeader(rules, {})
    append(leader, 0, epoch=1)

    assert code_of(leader, 1, epoch=0, transactional=True) in {INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE}
    assert (PRODUCER_ID in leader.producers.verifications) is verifies


def test_too_few_replicas_refuse_appends_and_lagging_replicas_delay_the_high_watermark(leader):
    leader.lacks_replicas = True
    assert code_of(leader, 0) == NOT_ENOUGH_REPLICAS
    leader.lacks_replicas, leader.replicates = False, False
    append(leader, 0)

    assert leader.log.high_watermark == 0
    leader.replicate()
    assert leader.log.high_watermark == 2


def test_a_clean_election_keeps_exactly_the_replicated_batches_and_their_producer_state():
    leader = PartitionLeader(KAFKA_4, {})
    append(leader, 0)
    leader.replicates = False
    append(leader, 2)
    leader.elect(leader.log.high_watermark)

    assert leader.log.end == 2
    assert code_of(leader, 4) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 2) == 0


def test_a_restarted_broker_knows_only_the_last_batch_with_the_timestamp_of_the_marker_after_it(leader):
    append(leader, 0, transactional=True, verified=True, time_ms=NOW_MS - 9000)
    append(leader, 2, transactional=True, time_ms=NOW_MS - 9000)
    end(leader, now_ms=NOW_MS)
    leader.elect(leader.log.end, is_restarted=True)

    assert append(leader, 2, time_ms=NOW_MS - 9000).log_append_time == NOW_MS
    assert code_of(leader, 0, time_ms=NOW_MS - 9000) == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_retention_keeps_producer_state_until_a_restart(leader):
    append(leader, 0)
    append(leader, 0, producer=8)
    leader.delete_before(2)
    leader.elect(leader.log.end)
    assert code_of(leader, 9) == OUT_OF_ORDER_SEQUENCE_NUMBER

    leader.elect(leader.log.end, is_restarted=True)
    assert code_of(leader, 9) == 0


def test_compaction_keeps_an_empty_last_batch_of_each_known_producer():
    leader = PartitionLeader(KAFKA_4, {"cleanup.policy": "compact"})
    append(leader, 0, keys=True)
    append(leader, 2, keys=True)
    append(leader, 0, producer=8, keys=True)
    removed = leader.compact(leader.log.end)

    assert removed == {0, 1, 2, 3}
    assert [(batch.producer_id, batch.count, batch.last_sequence) for batch in leader.log.batches] == [
        (PRODUCER_ID, 0, 3),
        (8, 2, 1),
    ]
    leader.elect(leader.log.end, is_restarted=True)
    assert code_of(leader, 9, keys=True) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 4, keys=True) == 0


def test_log_append_time_replaces_timestamps_and_is_returned():
    leader = PartitionLeader(KAFKA_4, {"message.timestamp.type": "LogAppendTime"})
    appended = append(leader, 0, time_ms=NOW_MS - DAY_MS)
    repeated = append(leader, 0, time_ms=NOW_MS - DAY_MS, now_ms=NOW_MS + 50)

    assert appended.log_append_time == repeated.log_append_time == NOW_MS
    assert [record.timestamp for record in leader.log.batches[0].records] == [NOW_MS, NOW_MS]


def test_the_size_limit_counts_after_recompression():
    leader = PartitionLeader(KAFKA_4, {"compression.type": "uncompressed", "max.message.bytes": "1000"})

    assert batch(0, 4, codec=4, size=400).size_bytes < 1000
    assert code_of(leader, 0, 4, codec=4, size=400) == MESSAGE_TOO_LARGE
    assert code_of(leader, 0, 2, codec=4, size=400) == 0


def test_each_epoch_ends_at_the_start_of_the_next(leader):
    append(leader, 0)
    leader.elect(leader.log.end)
    append(leader, 2)
    leader.elect(leader.log.end)
    append(leader, 4)

    assert leader.log.epochs == [(0, 0), (1, 2), (2, 4)]
    assert [leader.log.end_of_epoch(epoch) for epoch in (0, 1, 2, 3)] == [(0, 2), (1, 4), (2, 6), (-1, -1)]


def test_an_unclean_election_truncates_epochs():
    leader = PartitionLeader(KAFKA_4, {})
    append(leader, 0)
    append(leader, 2)
    leader.elect(leader.log.end)
    append(leader, 4)
    leader.elect(3)
    append(leader, 6, producer=8)

    assert leader.log.epochs == [(0, 0), (2, 2)]
    assert leader.log.end_of_epoch(1) == (0, 2)
    assert [record.value for batch in leader.log.batches for record in batch.records] == [
        b"0",
        b"1",
        b"6",
        b"7",
    ]
