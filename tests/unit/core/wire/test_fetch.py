"""Fetch requests are what Kafka's schema says, and its responses are read as what they say; both against kafka-python."""

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.fetch import (
    VERSIONS,
    FetchedPartition,
    FetchFrom,
    FetchKey,
    fetch_request,
    read_fetched,
)
from tests.unit.core.wire.messages import FetchRequest, FetchResponse

OFFSETS = st.integers(-1, 2**63 - 1)
EPOCHS = st.integers(-1, 2**31 - 1)
CODES = st.integers(-1, 110)
PARTITIONS = st.integers(0, 2**31 - 1)
VERSION = st.sampled_from(VERSIONS)
NAMES = st.text("abc.-_XYZ019", min_size=1, max_size=249)


@st.composite
def topics(draw, version, content):
    """By topic (the id or the name, as the wire has it) and partition: *content*."""
    ids = st.uuids().map(lambda topic: topic.bytes) if version >= 13 else NAMES.map(str.encode)
    return draw(
        st.dictionaries(ids, st.dictionaries(PARTITIONS, content, min_size=1, max_size=3), max_size=3)
    )


def named(topic, version):
    """The topic's field as kafka-python has it."""
    return {"topic_id": uuid.UUID(bytes=topic)} if version >= 13 else {"topic": topic.decode()}


def key_of(topic, partition, version):
    """The other way round."""
    return FetchKey(topic.topic_id.bytes if version >= 13 else topic.topic.encode(), partition)


@given(
    st.data(),
    VERSION,
    st.tuples(EPOCHS, EPOCHS),
    st.booleans(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    NAMES,
)
def test_a_request_says_what_was_asked(data, version, session, read_committed, wait_ms, max_bytes, rack):
    """Every field is where another implementation looks for it."""
    wanted = data.draw(
        topics(version, st.builds(FetchFrom, OFFSETS, EPOCHS, EPOCHS, st.integers(0, 2**31 - 1)))
    )
    dropped = data.draw(topics(version, st.none()))

    body = fetch_request(
        version,
        session_id=session[0],
        session_epoch=session[1],
        partitions=[
            (FetchKey(topic, number), at) for topic, parts in wanted.items() for number, at in parts.items()
        ],
        forgotten=[FetchKey(topic, number) for topic, parts in dropped.items() for number in parts],
        read_committed=read_committed,
        max_wait_ms=wait_ms,
        max_bytes=max_bytes,
        rack=rack,
    )

    said = FetchRequest.decode(body, version=version)
    assert (-1, wait_ms, 1, max_bytes, int(read_committed), *session, rack) == (
        said.replica_id,
        said.max_wait_ms,
        said.min_bytes,
        said.max_bytes,
        said.isolation_level,
        said.session_id,
        said.session_epoch,
        said.rack_id,
    )
    found = {
        key_of(topic, part.partition, version): (
            part.fetch_offset,
            part.current_leader_epoch,
            part.last_fetched_epoch,
            part.log_start_offset,
            part.partition_max_bytes,
        )
        for topic in said.topics
        for part in topic.partitions
    }
    assert {
        FetchKey(topic, number): (
            at.offset,
            at.leader_epoch,
            at.last_epoch if version >= 12 else -1,
            -1,
            at.max_bytes,
        )
        for topic, parts in wanted.items()
        for number, at in parts.items()
    } == found
    assert {FetchKey(topic, number) for topic, parts in dropped.items() for number in parts} == {
        key_of(topic, number, version) for topic in said.forgotten_topics_data for number in topic.partitions
    }


ANSWERS = st.fixed_dictionaries(
    {
        "error_code": CODES,
        "high_watermark": OFFSETS,
        "last_stable_offset": OFFSETS,
        "log_start_offset": OFFSETS,
        "aborted": st.one_of(st.none(), st.lists(st.tuples(OFFSETS, OFFSETS), max_size=3)),
        "preferred_read_replica": EPOCHS,
        "records": st.one_of(st.none(), st.binary(max_size=300)),
        "diverging": st.one_of(st.none(), st.tuples(EPOCHS, st.integers(0, 2**63 - 1))),
        "leader": st.one_of(st.none(), st.tuples(st.integers(0, 2**31 - 1), EPOCHS)),
    }
)


def foreign_answer(number, answer, version):
    """One partition's answer as kafka-python has it."""
    response = FetchResponse.FetchableTopicResponse
    data = response.PartitionData
    plain = {
        name: answer[name]
        for name in (
            "error_code",
            "high_watermark",
            "last_stable_offset",
            "log_start_offset",
            "preferred_read_replica",
            "records",
        )
    }
    if version >= 12 and answer["diverging"]:
        epoch, end = answer["diverging"]
        plain["diverging_epoch"] = data.EpochEndOffset(version=version, epoch=epoch, end_offset=end)
    if version >= 12 and answer["leader"]:
        leader, epoch = answer["leader"]
        plain["current_leader"] = data.LeaderIdAndEpoch(version=version, leader_id=leader, leader_epoch=epoch)
    aborted = answer["aborted"]
    return data(
        version=version,
        partition_index=number,
        aborted_transactions=None
        if aborted is None
        else [
            data.AbortedTransaction(version=version, producer_id=producer, first_offset=first)
            for producer, first in aborted
        ],
        **plain,
    )


def response_of(version, answers, *, throttle_ms=0, error=0, session_id=0):
    """The body of a response as a broker would write it."""
    message = FetchResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        error_code=error,
        session_id=session_id,
        responses=[
            FetchResponse.FetchableTopicResponse(
                version=version,
                partitions=[foreign_answer(number, answer, version) for number, answer in parts.items()],
                **named(topic, version),
            )
            for topic, parts in answers.items()
        ],
    )
    return message.encode(version=version)


@given(st.data(), VERSION, st.integers(0, 2**31 - 1), CODES, st.integers(0, 2**31 - 1))
def test_a_response_is_read_as_it_was_meant(data, version, throttle_ms, error, session_id):
    """Every field of every partition, null and tagged ones too."""
    answers = data.draw(topics(version, ANSWERS))
    body = bytearray(
        response_of(version, answers, throttle_ms=throttle_ms, error=error, session_id=session_id)
    )

    fetched = read_fetched(version, memoryview(body))

    assert (throttle_ms, error, session_id) == (fetched.throttle_ms, fetched.error, fetched.session_id)
    tagged = version >= 12
    assert [
        FetchedPartition(
            FetchKey(topic, number),
            one["error_code"],
            one["high_watermark"],
            one["last_stable_offset"],
            one["log_start_offset"],
            tuple(one["aborted"] or ()),
            one["preferred_read_replica"],
            memoryview(one["records"] or b""),
            one["diverging"] if tagged else None,
            one["leader"] if tagged else None,
        )
        for topic, parts in answers.items()
        for number, one in parts.items()
    ] == list(fetched.partitions)


def test_records_are_a_view_into_the_answer_that_may_be_written():
    """A batch is rewritten where it lies: no copy is made of what is fetched."""
    answer = {"aborted": None, "diverging": None, "leader": None, "records": b"batch", "error_code": 0}
    answer |= dict.fromkeys(
        ("high_watermark", "last_stable_offset", "log_start_offset", "preferred_read_replica"), 0
    )
    body = bytearray(response_of(11, {b"orders": {0: answer}}))

    read_fetched(11, memoryview(body)).partitions[0].records[:] = b"BATCH"

    assert b"BATCH" in body


@given(st.data(), VERSION)
def test_a_response_cut_off_anywhere_is_an_error(data, version):
    """What a broken connection leaves is never taken for a shorter answer."""
    answers = data.draw(topics(version, ANSWERS))
    body = response_of(version, answers)
    # The end of the flexible form is the tagged fields of the whole message, which are not read.
    cut = data.draw(st.integers(0, len(body) - (2 if version >= 12 else 1)))

    with pytest.raises((struct.error, IndexError)):
        read_fetched(version, memoryview(bytes(body[:cut])))
