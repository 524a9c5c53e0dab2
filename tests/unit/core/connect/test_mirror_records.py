"""MM2's records equal those of Java byte by byte, and no bytes in their topics can crash a reader.

The expected bytes were written by OffsetSync, Checkpoint and Heartbeat of Kafka 3.9.1 and 4.3.1; both versions write
the same bytes.
"""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.mirror_records import (
    Checkpoint,
    Heartbeat,
    OffsetSync,
    decode_checkpoint,
    decode_heartbeat,
    decode_offset_sync,
    encode_checkpoint_key,
    encode_checkpoint_value,
    encode_heartbeat_key,
    encode_heartbeat_value,
    encode_offset_sync_key,
    encode_offset_sync_value,
)

OFFSET_SYNCS = [
    (
        OffsetSync(topic="foo", partition=3, upstream_offset=100, downstream_offset=205),
        "0003666f6f00000003",
        "000000000000006400000000000000cd",
    ),
    (
        OffsetSync(topic="größe.日本", partition=2**31 - 1, upstream_offset=-1, downstream_offset=2**63 - 1),
        "000e6772c3b6c39f652ee697a5e69cac7fffffff",
        "ffffffffffffffff7fffffffffffffff",
    ),
    (
        OffsetSync(topic="", partition=0, upstream_offset=0, downstream_offset=0),
        "000000000000",
        "00000000000000000000000000000000",
    ),
]
CHECKPOINTS = [
    (
        Checkpoint(group="g1", topic="A.foo", partition=3, upstream_offset=100, downstream_offset=205),
        "000267310005412e666f6f00000003",
        "0000000000000000006400000000000000cd0000",
    ),
    (
        Checkpoint(
            group="grüppe 🚀",
            topic="B.A.orders",
            partition=17,
            upstream_offset=9_876_543_210,
            downstream_offset=-1,
            metadata='{"meta":"é"}',
        ),
        "000c6772c3bc70706520f09f9a80000a422e412e6f726465727300000011",
        "0000000000024cb016eaffffffffffffffff000d7b226d657461223a22c3a9227d",
    ),
]
HEARTBEATS = [
    (
        Heartbeat(source_alias="A", target_alias="B", timestamp_ms=1_700_000_000_000),
        "000141000142",
        "00000000018bcfe56800",
    ),
    (
        Heartbeat(source_alias="öst", target_alias="west-2", timestamp_ms=1),
        "0004c3b673740006776573742d32",
        "00000000000000000001",
    ),
]

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
nullable_bytes = st.none() | st.binary(max_size=64)

Decode = Callable[[bytes | None, bytes | None], object]


@pytest.mark.parametrize(("sync", "key", "value"), OFFSET_SYNCS)
def test_an_offset_sync_equals_that_of_java(sync: OffsetSync, key: str, value: str) -> None:
    assert key == encode_offset_sync_key(sync).hex()
    assert value == encode_offset_sync_value(sync).hex()
    assert sync == decode_offset_sync(bytes.fromhex(key), bytes.fromhex(value))


@pytest.mark.parametrize(("checkpoint", "key", "value"), CHECKPOINTS)
def test_a_checkpoint_equals_that_of_java(checkpoint: Checkpoint, key: str, value: str) -> None:
    assert key == encode_checkpoint_key(checkpoint).hex()
    assert value == encode_checkpoint_value(checkpoint).hex()
    assert checkpoint == decode_checkpoint(bytes.fromhex(key), bytes.fromhex(value))


@pytest.mark.parametrize(("heartbeat", "key", "value"), HEARTBEATS)
def test_a_heartbeat_equals_that_of_java(heartbeat: Heartbeat, key: str, value: str) -> None:
    assert key == encode_heartbeat_key(heartbeat).hex()
    assert value == encode_heartbeat_value(heartbeat).hex()
    assert heartbeat == decode_heartbeat(bytes.fromhex(key), bytes.fromhex(value))


def test_a_lone_surrogate_becomes_a_question_mark_as_in_java() -> None:
    heartbeat = Heartbeat(source_alias="lone\ud800surrogate", target_alias="B", timestamp_ms=-1)

    assert "000e6c6f6e653f737572726f67617465000142" == encode_heartbeat_key(heartbeat).hex()


@given(topic=names, partition=int32, upstream=int64, downstream=int64)
def test_an_offset_sync_is_decoded_as_encoded(
    topic: str, partition: int, upstream: int, downstream: int
) -> None:
    sync = OffsetSync(
        topic=topic, partition=partition, upstream_offset=upstream, downstream_offset=downstream
    )

    assert sync == decode_offset_sync(encode_offset_sync_key(sync), encode_offset_sync_value(sync))


@given(group=names, topic=names, partition=int32, upstream=int64, downstream=int64, metadata=names)
def test_a_checkpoint_is_decoded_as_encoded(
    group: str, topic: str, partition: int, upstream: int, downstream: int, metadata: str
) -> None:
    checkpoint = Checkpoint(
        group=group,
        topic=topic,
        partition=partition,
        upstream_offset=upstream,
        downstream_offset=downstream,
        metadata=metadata,
    )

    assert checkpoint == decode_checkpoint(
        encode_checkpoint_key(checkpoint), encode_checkpoint_value(checkpoint)
    )


@given(source=names, target=names, timestamp_ms=int64)
def test_a_heartbeat_is_decoded_as_encoded(source: str, target: str, timestamp_ms: int) -> None:
    heartbeat = Heartbeat(source_alias=source, target_alias=target, timestamp_ms=timestamp_ms)

    assert heartbeat == decode_heartbeat(encode_heartbeat_key(heartbeat), encode_heartbeat_value(heartbeat))


@pytest.mark.parametrize("decode", [decode_offset_sync, decode_checkpoint, decode_heartbeat])
@given(key=nullable_bytes, value=nullable_bytes)
def test_any_bytes_are_decoded_or_refused_with_a_message(
    decode: Decode, key: bytes | None, value: bytes | None
) -> None:
    """No writer of the topic can crash a reader."""
    problem = ""
    try:
        decode(key, value)
    except ValueError as error:
        problem = str(error)
    assert not problem or problem.startswith("its ")


@pytest.mark.parametrize(
    ("decode", "key", "value"),
    [
        (decode_offset_sync, *OFFSET_SYNCS[0][1:]),
        (decode_checkpoint, *CHECKPOINTS[1][1:]),
        (decode_heartbeat, *HEARTBEATS[0][1:]),
    ],
)
def test_a_truncated_record_is_refused(decode: Decode, key: str, value: str) -> None:
    whole_key, whole_value = bytes.fromhex(key), bytes.fromhex(value)
    for size in range(len(whole_key)):
        with pytest.raises(ValueError, match=r"its key "):
            decode(whole_key[:size], whole_value)
    for size in range(len(whole_value)):
        with pytest.raises(ValueError, match=r"its value "):
            decode(whole_key, whole_value[:size])


def test_a_later_version_is_refused() -> None:
    """Java refuses it since 4.4. Earlier versions treat it as version 0."""
    key, value = (bytes.fromhex(text) for text in HEARTBEATS[0][1:])

    with pytest.raises(ValueError, match="version is 1, not 0"):
        decode_heartbeat(key, b"\x00\x01" + value[2:])


def test_a_tombstone_is_refused() -> None:
    with pytest.raises(ValueError, match="its value is null"):
        decode_checkpoint(bytes.fromhex(CHECKPOINTS[0][1]), None)


def test_a_name_that_is_too_long_is_refused_and_not_truncated() -> None:
    sync = OffsetSync(topic="ö" * 16_384, partition=0, upstream_offset=0, downstream_offset=0)

    with pytest.raises(ValueError, match="32768 bytes"):
        encode_offset_sync_key(sync)
