"""Produce requests and responses agree with kafka-python's implementation of Kafka's schema."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.produce import (
    ACKS_ALL,
    VERSION,
    PartitionProduceResponse,
    parse_produce_response,
    produce_request,
)
from tests.unit.core.wire.messages import ProduceRequest, ProduceResponse

NAMES = st.text("abc.-_XYZ019", min_size=1, max_size=249)
PARTITIONS = st.integers(0, 2**31 - 1)
BATCHES = st.dictionaries(
    NAMES,
    st.dictionaries(PARTITIONS, st.binary(min_size=1, max_size=200), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)


@given(BATCHES, st.one_of(st.none(), NAMES), st.integers(0, 2**31 - 1))
def test_a_request_has_each_batch_for_its_partition(batches, transactional_id, timeout_ms):
    """The bytes equal those of kafka-python. All replicas must acknowledge."""
    parts = produce_request(
        {topic: list(of_topic.items()) for topic, of_topic in batches.items()},
        timeout_ms=timeout_ms,
        transactional_id=transactional_id,
    )

    topic_data = ProduceRequest.TopicProduceData
    expected = ProduceRequest(
        version=VERSION,
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[
            topic_data(
                version=VERSION,
                name=topic,
                partition_data=[
                    topic_data.PartitionProduceData(version=VERSION, index=index, records=records)
                    for index, records in of_topic.items()
                ],
            )
            for topic, of_topic in batches.items()
        ],
    )
    assert bytes(expected.encode(version=VERSION)) == b"".join(parts)
    assert -1 == ACKS_ALL


def test_batches_are_sent_without_a_copy():
    batch = memoryview(bytearray(b"batch"))

    parts = produce_request({"orders": [(0, batch)]}, timeout_ms=1)

    assert any(part is batch for part in parts)


RESPONSES = st.dictionaries(
    NAMES,
    st.dictionaries(
        PARTITIONS,
        st.tuples(
            st.integers(-1, 110),
            st.integers(-1, 2**63 - 1),
            st.integers(-1, 2**63 - 1),
            st.lists(st.tuples(st.integers(0, 99), st.one_of(st.none(), st.text(max_size=20))), max_size=3),
            st.one_of(st.none(), st.text(max_size=40)),
        ),
        min_size=1,
        max_size=3,
    ),
    max_size=3,
)


def response_of(responses, throttle_ms=0):
    """Returns the body of a response as a broker writes it."""
    of_topic = ProduceResponse.TopicProduceResponse
    of_partition = of_topic.PartitionProduceResponse
    return bytes(
        ProduceResponse(
            version=VERSION,
            throttle_time_ms=throttle_ms,
            responses=[
                of_topic(
                    version=VERSION,
                    name=topic,
                    partition_responses=[
                        of_partition(
                            version=VERSION,
                            index=index,
                            error_code=error,
                            base_offset=base_offset,
                            log_append_time_ms=append_time_ms,
                            log_start_offset=0,
                            record_errors=[
                                of_partition.BatchIndexAndErrorMessage(
                                    version=VERSION, batch_index=batch_index, batch_index_error_message=text
                                )
                                for batch_index, text in problems
                            ],
                            error_message=message,
                        )
                        for index, (error, base_offset, append_time_ms, problems, message) in parts.items()
                    ],
                )
                for topic, parts in responses.items()
            ],
        ).encode(version=VERSION)
    )


@given(RESPONSES, st.integers(0, 2**31 - 1))
def test_a_produce_response_is_parsed_with_all_fields(responses, throttle_ms):
    """The message is that of the partition, or otherwise that of its first record."""
    parsed, throttled_ms = parse_produce_response(memoryview(response_of(responses, throttle_ms)))

    assert throttle_ms == throttled_ms
    assert {
        (topic, index): PartitionProduceResponse(
            error,
            base_offset,
            append_time_ms,
            message or next((text for _, text in problems if text), ""),
            tuple(batch_index for batch_index, _ in problems),
        )
        for topic, parts in responses.items()
        for index, (error, base_offset, append_time_ms, problems, message) in parts.items()
    } == parsed


@given(RESPONSES, st.data())
def test_a_truncated_produce_response_is_an_error(responses, data):
    """Only a complete response acknowledges a batch."""
    body = response_of(responses)
    cut = data.draw(st.integers(0, len(body) - 1))

    with pytest.raises((struct.error, IndexError)):
        parse_produce_response(memoryview(body[:cut]))
