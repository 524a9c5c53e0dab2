"""Transactional ids, and the bytes of claim and position records."""

from dataclasses import replace

import pytest

from mirrorflow_core.connect.position_records import PositionKey, Reset, Stored, encode_key
from mirrorflow_core.connect.position_records import decode as decode_offset
from mirrorflow_core.partitions import Position
from mirrorflow_core.source_epochs import EpochStart
from mirrorflow_core.writer.claim import (
    Claim,
    ClaimWatch,
    claims_topic,
    decode_claim,
    encode_claim,
    ids_to_take,
)
from mirrorflow_core.writer.position import (
    WriteMode,
    WriterPosition,
    decode_position,
    encode_position,
    obeyed_position,
    reset_position,
)
from mirrorflow_core.writer.transaction_log import DecidedRecords
from mirrorflow_core.writer.transactional_ids import TransactionalIds, WriterIds

IDS = TransactionalIds("east")
KEY = PositionKey("MirrorSourceConnector", "east", "orders", 3)
POSITION = WriterPosition(
    topic="orders",
    partition=3,
    next_source_offset=101,
    java_offset=100,
    source_epoch=4,
    epochs=(EpochStart(3, 0), EpochStart(4, 90)),
    target_end=205,
    target_epoch=2,
    source_topic_id="s",
    target_topic_id="t",
    writer=IDS.task(1),
    mode=WriteMode.TRANSACTION,
    producer_id=9,
    producer_epoch=17,
    sequence=50,
    plain_start=205,
    time_ms=1000,
)
CLAIM = Claim(flow="orders", process="p1", source_alias="east", tasks=2, lock_epoch=16, time_ms=5)


def decoded(value, key=KEY):
    return decode_position(encode_key(key), value, connector=KEY.connector, cluster="east")


def test_transactional_ids_begin_with_the_prefix_of_the_flow():
    assert IDS.lock == "mirrorflow:east:lock"
    assert IDS.task(2) == WriterIds("mirrorflow:east:task-2", "mirrorflow:east:task-2-plain")
    assert IDS.seed("7", 1).transactional == "mirrorflow:east:seed-7-1"
    assert all(name.startswith(IDS.prefix) for name in (IDS.lock, *IDS.task(0), *IDS.seed("7", 0)))


def test_a_writer_position_is_decoded_as_encoded():
    assert decoded(encode_position(POSITION)) == POSITION


def test_a_position_starts_with_the_field_of_java_and_has_no_nested_fields():
    value = encode_position(POSITION)

    assert value.startswith(b'{"offset":100,')
    assert value.count(b"{") == 1


def test_a_reader_of_java_offsets_can_decode_a_position():
    decoded_position = decode_offset(
        encode_key(KEY), encode_position(POSITION), connector=KEY.connector, cluster="east"
    )

    assert isinstance(decoded_position, Stored)
    assert not decoded_position.warning
    assert decoded_position.position == Position(
        topic="orders",
        partition=3,
        source_offset=100,
        source_epoch=4,
        epochs=POSITION.epochs,
        source_topic_id="s",
        target_topic_id="t",
        written_ms=1000,
    )


def test_a_position_before_the_first_record_is_decoded_as_encoded():
    """Java treats a negative offset as missing, and therefore also starts at the first record."""
    position = replace(POSITION, next_source_offset=0, java_offset=-1)

    assert decoded(encode_position(position)) == position


def test_copying_starts_at_an_offset_that_a_user_has_altered():
    decoded_position = decoded(encode_position(POSITION).replace(b'"offset":100', b'"offset":7', 1))

    assert isinstance(decoded_position, Stored)
    obeyed = obeyed_position(decoded_position.position)
    assert (obeyed.next_source_offset, obeyed.open_writer) == (8, None)


def test_a_tombstone_is_a_reset():
    decoded_position = decoded(None)

    assert decoded_position == Reset(key=KEY)
    assert reset_position(decoded_position).next_source_offset == -1


@pytest.mark.parametrize("invalid", [b'"writer.form":"both"', b'"writer.sequence":"x"'])
def test_a_position_with_invalid_fields_counts_as_a_position_of_java(invalid):
    name = invalid.split(b":")[0].strip(b'"')
    value = encode_position(POSITION)
    start = value.index(b'"mirrorflow.' + name)
    end = value.index(b",", start)

    decoded_position = decoded(value[:start] + b'"mirrorflow.' + invalid[1:] + value[end:])

    assert isinstance(decoded_position, Stored)
    assert str(decoded_position.warning).startswith("only the offset of orders-3 was taken")


@pytest.mark.parametrize(
    ("changed", "is_empty"),
    [
        ({"records": 0, "target_end": 0}, True),
        ({"records": -1, "target_end": -1}, True),
        ({"records": 5, "target_end": 5}, False),
        ({"records": 0, "target_end": 7}, False),
        ({"records": 0, "target_end": 0, "left": False}, False),
        ({"records": -1, "target_end": -1, "writer": None}, False),
    ],
)
def test_a_copy_is_empty_if_its_writer_left_without_records_in_the_target(changed, is_empty):
    assert replace(POSITION, **{"left": True} | changed).is_of_empty_copy == is_empty


def test_a_writer_that_left_is_not_an_open_writer():
    assert replace(POSITION, left=True).open_writer is None
    assert POSITION.open_writer == IDS.task(1)


def test_a_claim_is_decoded_as_encoded():
    assert decode_claim(*encode_claim(CLAIM)) == CLAIM
    assert encode_claim(CLAIM)[0] == b'{"flow":"orders"}'
    assert claims_topic("east") == "mm2-claims.east.internal"


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"tasks":"x","lock_epoch":1,"time_ms":1}', b'{"left":1}'])
def test_a_malformed_claim_is_refused(value):
    with pytest.raises(ValueError, match=r"."):
        decode_claim(b'{"flow":"orders"}', value)


def test_a_takeover_takes_the_ids_of_a_claim_with_more_tasks():
    claims = DecidedRecords((replace(CLAIM, tasks=9), replace(CLAIM, tasks=3)), (replace(CLAIM, tasks=4),))

    ids = ids_to_take(claims, replace(CLAIM, tasks=1), ())

    assert ids == tuple(name for number in range(4) for name in (*IDS.task(number), IDS.task(number).spare))


def test_a_takeover_takes_the_ids_that_positions_name():
    positions = (replace(POSITION, writer=IDS.seed("7", 5)), replace(POSITION, writer=IDS.task(8), left=True))

    assert ids_to_take(DecidedRecords((), ()), replace(CLAIM, tasks=1), positions) == (
        *IDS.task(0),
        IDS.task(0).spare,
        *IDS.seed("7", 5),
    )


def test_a_claim_protects_its_owner_while_it_is_renewed():
    watch = ClaimWatch(CLAIM, 0)

    assert not watch.may_take(14_999)
    assert watch.may_take(15_000)
    assert not watch.observe(CLAIM.renewed(9, lock_id=1, lock_epoch=16), 14_000).may_take(15_000)
    assert watch.observe(CLAIM.renewed(9, lock_id=1, lock_epoch=16, left=True), 1).may_take(1)
    assert ClaimWatch(None, 0).may_take(0)
