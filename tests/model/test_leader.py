"""The modelled leader keeps the rules that brokers were seen to keep (shown on 3.9.1 and 4.3.1 by the differential test)."""

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
US = 7


@pytest.fixture
def leader():
    return PartitionLeader(KAFKA_4, {})


def batch(
    sequence, count=2, *, producer=US, epoch=0, at_ms=NOW_MS, transactional=False, keys=False, codec=0, size=1
):
    records = [
        Record(0, at_ms + i, b"k%d" % i if keys else None, b"%d" % (sequence + i) * size)
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
    """The error with which *leader* refuses that batch; 0 if it appends it."""
    try:
        append(leader, *arguments, **settings)
    except RefusedError as error:
        return error.code
    return 0


def append(leader, *arguments, now_ms=NOW_MS, verified=False, **settings):
    one = batch(*arguments, **settings)
    guard = leader.start_verification(one, now_ms) if one.is_transactional else None
    return leader.append(one, now_ms, guard if verified else None)


def end(leader, kind=COMMIT, epoch=0, now_ms=NOW_MS):
    return leader.append_marker(
        producer_id=US, producer_epoch=epoch, kind=kind, coordinator_epoch=0, now_ms=now_ms
    )


def test_who_is_not_remembered_may_begin_anywhere(leader):
    assert code_of(leader, 500) == 0
    assert code_of(leader, 600) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 502) == 0


def test_one_of_the_last_five_batches_is_answered_as_it_was(leader):
    first = append(leader, 0, at_ms=NOW_MS - 5000)
    again = append(leader, 0, at_ms=NOW_MS - 5000)
    for sequence in (2, 4, 6, 8, 10):
        append(leader, sequence)

    assert (first.base_offset, first.log_append_time) == (0, -1)
    assert (again.base_offset, again.log_append_time, again.is_repeat) == (0, NOW_MS - 4999, True)
    assert code_of(leader, 0) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.log.end == 12


def test_a_foreign_batch_with_our_number_is_taken_and_ours_answered_as_its_repeat(leader):
    append(leader, 0)
    foreign = append(leader, 2, at_ms=NOW_MS - 9000)
    ours = append(leader, 2, at_ms=NOW_MS)

    assert ours.base_offset == foreign.base_offset
    assert ours.log_append_time == NOW_MS - 8999


def test_a_later_epoch_begins_with_zero_and_ends_the_earlier_one(leader):
    append(leader, 0)

    assert code_of(leader, 2, epoch=1) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 0, epoch=1) == 0
    assert code_of(leader, 2) == INVALID_PRODUCER_EPOCH


def test_sequences_wrap(leader):
    append(leader, SEQUENCES - 3, 4)

    assert leader.producers.producers[US].last_sequence == 0
    assert code_of(leader, 1) == 0


def test_an_empty_transaction_makes_the_leader_take_zero_alone(leader):
    append(leader, 0)
    end(leader, ABORT, epoch=1)

    assert code_of(leader, 2) == INVALID_PRODUCER_EPOCH
    assert code_of(leader, 100, epoch=1) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 0, epoch=1) == 0


def test_producers_are_forgotten_by_the_time_of_their_last_record(leader):
    append(leader, 0, at_ms=NOW_MS - DAY_MS)
    leader.expire(NOW_MS, DAY_MS)

    assert US in leader.producers.producers, "the second record is a millisecond younger"
    leader.expire(NOW_MS + 1, DAY_MS)
    assert US not in leader.producers.producers
    assert code_of(leader, 500) == 0


def test_no_producer_is_forgotten_within_a_transaction_and_a_marker_counts_as_now(leader):
    append(leader, 0, transactional=True, verified=True, at_ms=NOW_MS - 40 * DAY_MS)
    leader.expire(NOW_MS, DAY_MS)
    assert US in leader.producers.producers

    end(leader)
    leader.expire(NOW_MS + DAY_MS - 1, DAY_MS)
    assert US in leader.producers.producers
    leader.expire(NOW_MS + DAY_MS, DAY_MS)
    assert US not in leader.producers.producers


def test_what_is_refused_inside_a_transaction_blocks_what_comes_behind_it_outside(leader):
    """KIP-890's entry keeps the lowest sequence until a transactional append or a marker (issue 13, point 1)."""
    append(leader, 0)
    assert code_of(leader, 2, transactional=True) == INVALID_TXN_STATE
    assert code_of(leader, 2) == 0
    assert code_of(leader, 4) == OUT_OF_ORDER_SEQUENCE_NUMBER

    end(leader)
    assert code_of(leader, 4) == 0


def test_the_entry_goes_with_age_and_is_not_there_before_3_6(leader):
    code_of(leader, 2, transactional=True)
    leader.expire(NOW_MS + DAY_MS, DAY_MS)
    assert leader.producers.verifications == {}

    old = PartitionLeader(KAFKA_3_5, {})
    append(old, 0)
    assert code_of(old, 2, transactional=True) == 0


def test_a_transaction_takes_nothing_from_outside(leader):
    append(leader, 0, transactional=True, verified=True)

    assert code_of(leader, 2) == INVALID_TXN_STATE
    assert leader.last_stable_offset == 0
    end(leader)
    assert leader.last_stable_offset == leader.log.high_watermark == 3
    assert code_of(leader, 2) == 0


@pytest.mark.parametrize(("rules", "verifies"), [(KAFKA_3_9, True), (KAFKA_4, False)])
def test_an_older_epoch_is_refused_before_it_is_verified_since_4(rules, verifies):
    leader = PartitionLeader(rules, {})
    append(leader, 0, epoch=1)

    assert code_of(leader, 1, epoch=0, transactional=True) in {INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE}
    assert (US in leader.producers.verifications) is verifies


def test_nothing_is_appended_while_replicas_are_missing_nor_readable_before_they_follow(leader):
    leader.lacks_replicas = True
    assert code_of(leader, 0) == NOT_ENOUGH_REPLICAS
    leader.lacks_replicas, leader.replicates = False, False
    append(leader, 0)

    assert leader.log.high_watermark == 0
    leader.replicate()
    assert leader.log.high_watermark == 2


def test_a_clean_election_loses_what_is_not_replicated_and_remembers_what_is():
    leader = PartitionLeader(KAFKA_4, {})
    append(leader, 0)
    leader.replicates = False
    append(leader, 2)
    leader.elect(leader.log.high_watermark)

    assert leader.log.end == 2
    assert code_of(leader, 4) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 2) == 0


def test_a_restarted_broker_knows_the_last_batch_alone_and_the_time_of_the_marker_behind_it(leader):
    append(leader, 0, transactional=True, verified=True, at_ms=NOW_MS - 9000)
    append(leader, 2, transactional=True, at_ms=NOW_MS - 9000)
    end(leader, now_ms=NOW_MS)
    leader.elect(leader.log.end, is_restarted=True)

    assert append(leader, 2, at_ms=NOW_MS - 9000).log_append_time == NOW_MS
    assert code_of(leader, 0, at_ms=NOW_MS - 9000) == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_retention_leaves_memory_alone_until_a_restart(leader):
    append(leader, 0)
    append(leader, 0, producer=8)
    leader.delete_before(2)
    leader.elect(leader.log.end)
    assert code_of(leader, 9) == OUT_OF_ORDER_SEQUENCE_NUMBER

    leader.elect(leader.log.end, is_restarted=True)
    assert code_of(leader, 9) == 0


def test_compaction_keeps_a_header_of_the_last_batch_of_who_is_remembered():
    leader = PartitionLeader(KAFKA_4, {"cleanup.policy": "compact"})
    append(leader, 0, keys=True)
    append(leader, 2, keys=True)
    append(leader, 0, producer=8, keys=True)
    gone = leader.compact(leader.log.end)

    assert gone == {0, 1, 2, 3}
    assert [(one.producer_id, one.count, one.last_sequence) for one in leader.log.batches] == [
        (US, 0, 3),
        (8, 2, 1),
    ]
    leader.elect(leader.log.end, is_restarted=True)
    assert code_of(leader, 9, keys=True) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(leader, 4, keys=True) == 0


def test_log_append_time_replaces_timestamps_and_is_answered():
    leader = PartitionLeader(KAFKA_4, {"message.timestamp.type": "LogAppendTime"})
    appended = append(leader, 0, at_ms=NOW_MS - DAY_MS)
    again = append(leader, 0, at_ms=NOW_MS - DAY_MS, now_ms=NOW_MS + 50)

    assert appended.log_append_time == again.log_append_time == NOW_MS
    assert [record.timestamp for record in leader.log.batches[0].records] == [NOW_MS, NOW_MS]


def test_the_size_limit_counts_after_recompression():
    leader = PartitionLeader(KAFKA_4, {"compression.type": "uncompressed", "max.message.bytes": "1000"})

    assert batch(0, 4, codec=4, size=400).size_bytes < 1000
    assert code_of(leader, 0, 4, codec=4, size=400) == MESSAGE_TOO_LARGE
    assert code_of(leader, 0, 2, codec=4, size=400) == 0


def test_epochs_end_where_the_next_one_began(leader):
    append(leader, 0)
    leader.elect(leader.log.end)
    append(leader, 2)
    leader.elect(leader.log.end)
    append(leader, 4)

    assert leader.log.epochs == [(0, 0), (1, 2), (2, 4)]
    assert [leader.log.end_of_epoch(epoch) for epoch in (0, 1, 2, 3)] == [(0, 2), (1, 4), (2, 6), (-1, -1)]


def test_an_unclean_election_ends_epochs_earlier():
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
