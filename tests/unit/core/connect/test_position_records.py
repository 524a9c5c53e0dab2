"""Position records equal those of Java with additional fields, and no bytes in the topic can crash a reader."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.position_records import (
    Malformed,
    PositionKey,
    Recency,
    Reset,
    Stored,
    decode,
    encode_key,
    encode_value,
    newest,
    recency,
)
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.source_epochs import EpochStart
from mirrorflow_core.wire.records import partition_for
from mirrorflow_kafka.stores.position_store import OffsetsFile

CONNECTOR = "MirrorSourceConnector"
KEY = PositionKey(CONNECTOR, "A", "foo", 0)
KNOWN = Position(topic="foo", partition=0, source_offset=123, source_epoch=7, written_ms=1_800)
WITH_TOPIC_IDS = json.loads(encode_value(KNOWN)) | {
    "mirrorflow.source.topic.id": "AbC",
    "mirrorflow.target.topic.id": "xYz",
}

int63 = st.integers(0, 2**63 - 1)
POSITIONS = st.builds(
    Position,
    topic=st.just("foo"),
    partition=st.just(0),
    source_offset=int63,
    source_epoch=st.integers(0, 2**31 - 1),
    epochs=st.lists(st.builds(EpochStart, st.integers(0, 2**31 - 1), int63), max_size=3).map(tuple),
    written_ms=int63,
)


def read(value: bytes | None, key: bytes | None = None):
    return decode(encode_key(KEY) if key is None else key, value, connector=CONNECTOR, cluster="A")


# The output of Java's JsonConverter 4.3.1 for the map of MirrorUtils.wrapPartition, and the partition that
# Utils.murmur2 returns for 25 partitions.
@pytest.mark.parametrize(
    ("key", "expected", "partition"),
    [
        (KEY, '["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"foo"}]', 16),
        (
            PositionKey(CONNECTOR, "ést-东", "foo", 0),
            '["MirrorSourceConnector",{"cluster":"ést-东","partition":0,"topic":"foo"}]',
            2,
        ),
        (
            PositionKey("c", "e\U0001f600x", 'a"b\\c/d', 0),
            '["c",{"cluster":"e\\uD83D\\uDE00x","partition":0,"topic":"a\\"b\\\\c/d"}]',
            5,
        ),
        (
            PositionKey("c", "\x00\x01\b\t\n\x0b\f\r\x1b\x1f\x7f\x80\u2028", "t", 0),
            '["c",{"cluster":"\\u0000\\u0001\\b\\t\\n\\u000B\\f\\r\\u001B\\u001F\x7f\x80\u2028","partition":0,"topic":"t"}]',
            10,
        ),
        (
            PositionKey("c", "lone\ud83dx", "t", 0),
            '["c",{"cluster":"lone\\uD83Dx","partition":0,"topic":"t"}]',
            7,
        ),
    ],
)
def test_keys_equal_those_of_java(key: PositionKey, expected: str, partition: int):
    """Field order, escapes and partition equal those of Java's converter and partitioner."""
    assert (expected.encode(), partition) == (encode_key(key), partition_for(encode_key(key), 25))


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        (b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"foo"}]', 16),
        (b'["MirrorCheckpointConnector",{"partition":0,"topic":"A.foo","group":"g1"}]', 18),
        (b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]', 0),
    ],
)
def test_keys_are_assigned_to_the_same_partitions_as_in_java(key: bytes, partition: int):
    assert partition == partition_for(key, 25)


def test_a_position_with_topic_ids_is_read():
    expected = replace(KNOWN, source_topic_id="AbC", target_topic_id="xYz")

    assert read(json.dumps(WITH_TOPIC_IDS).encode()) == Stored(key=KEY, position=expected)


def test_a_position_with_only_an_offset_equals_the_bytes_of_java():
    assert encode_value(Position(topic="foo", partition=0, source_offset=123)) == b'{"offset":123}'


def test_a_position_has_its_leader_epoch_and_time():
    assert json.loads(encode_value(KNOWN)) == {
        "offset": 123,
        "mirrorflow.source.offset": 123,
        "mirrorflow.source.epochs": "7",
        "mirrorflow.written.ms": 1_800,
    }


def test_values_have_no_nested_fields():
    """Java refuses nested fields."""
    fields = json.loads(encode_value(KNOWN))

    assert [] == [name for name, value in fields.items() if not isinstance(value, int | str | bool)]


@given(POSITIONS)
def test_a_position_is_decoded_as_encoded(position: Position):
    assert Stored(key=KEY, position=position) == read(encode_value(position))


def test_a_value_of_java_yields_only_the_offset():
    expected = Stored(key=KEY, position=Position(topic="foo", partition=0, source_offset=7))

    assert expected == read(b'{"offset":7}')


@pytest.mark.parametrize("value", [None, b'{"offset":-1}', b'{"offset":null}', b"{}"])
def test_values_that_java_treats_as_uncommitted_are_a_reset(value: bytes | None):
    """These are tombstones, and negative, null or missing offsets."""
    assert Reset(key=KEY) == read(value)


def test_an_altered_offset_invalidates_the_additional_fields():
    """A writer that changes only the offset keeps MirrorFlow's additional fields.

    They then describe a different offset.
    """
    altered = read(json.dumps({**WITH_TOPIC_IDS, "offset": 5}).encode())

    assert isinstance(altered, Stored)
    assert replace(altered, warning=None) == Stored(
        key=KEY, position=Position(topic="foo", partition=0, source_offset=5)
    )
    assert "altered" in str(altered.warning)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("written.ms", "x"),
        ("written.ms", 2**63),
        ("source.topic.id", 1),
        ("source.epochs", "x"),
        ("source.epochs", None),
    ],
)
def test_invalid_additional_fields_do_not_affect_the_offset(name: str, value: object):
    """Such a value counts as one of Java, with a warning."""
    decoded = read(json.dumps({**WITH_TOPIC_IDS, f"mirrorflow.{name}": value}).encode())

    assert isinstance(decoded, Stored)
    assert (123, -1, True) == (
        decoded.position.source_offset,
        decoded.position.source_epoch,
        bool(decoded.warning),
    )


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"\xff", b'{"offset":"1"}', b'{"offset":true}', b'{"offset":1.5}']
)
def test_malformed_values_are_reported(value: bytes):
    """The problem names the partition but does not show the value."""
    decoded = read(value)

    assert isinstance(decoded, Malformed)
    assert "foo-0" in decoded.problem


def test_a_key_that_java_would_not_match_is_reported():
    """For Java, a key with additional spaces is a different key."""
    decoded = read(
        b'{"offset":1}', key=b'["MirrorSourceConnector", {"cluster":"A","partition":0,"topic":"foo"}]'
    )

    assert isinstance(decoded, Malformed)


@pytest.mark.parametrize(
    "key",
    [
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]',
        b'["other",{"cluster":"A","partition":0,"topic":"foo"}]',
        b'["MirrorSourceConnector",{"cluster":"Z","partition":0,"topic":"foo"}]',
        b'["MirrorSourceConnector",{"file":"x"}]',
    ],
)
def test_keys_of_other_connectors_are_ignored(key: bytes):
    assert read(b'{"offset":1}', key=key) is None


@given(st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_no_bytes_crash_the_reader(key: bytes | None, value: bytes | None):
    """A topic may contain any bytes."""
    decode(key, value, connector=CONNECTOR, cluster="A")
    read(value)


FOO = TopicPartition("foo", 0)
BAR = TopicPartition("bar", 1)


def store(path: Path, connector: str = "MirrorSourceConnector") -> OffsetsFile:
    return OffsetsFile(path, connector=connector, source_alias="A")


def position(partition: TopicPartition, offset: int) -> Position:
    return Position(
        topic=partition.topic,
        partition=partition.partition,
        source_offset=offset,
        source_epoch=1,
    )


def test_a_new_process_reads_the_last_written_positions(tmp_path: Path):

    async def main() -> OffsetsFile:
        first = store(tmp_path / "offsets")
        await first.open()
        await first.write([position(FOO, 5)], now_ms=1_000)
        await first.write([position(FOO, 9)], now_ms=30_000)
        second = store(tmp_path / "offsets")
        await second.open()
        return second

    stored = asyncio.run(main()).positions[FOO]

    assert (stored.source_offset, stored.source_epoch, stored.written_ms) == (9, 1, 30_000)


def test_processes_share_a_file(tmp_path: Path):
    """Two tasks and a different connector write in turn. Each reads only its own positions."""

    async def main() -> tuple[OffsetsFile, OffsetsFile, frozenset[TopicPartition]]:
        first, second, other = (store(tmp_path / "o", name) for name in ("c", "c", "other"))
        for each in (first, second, other):
            await each.open()
        await first.write([position(FOO, 1)], now_ms=1)
        await other.write([position(FOO, 7)], now_ms=1)
        await second.write([position(BAR, 2)], now_ms=1)
        new = await first.read_new()
        await other.read_new()
        return first, other, new

    first, other, new = asyncio.run(main())

    assert {FOO: 1, BAR: 2} == {key: stored.source_offset for key, stored in first.positions.items()}
    assert {FOO: 7} == {key: stored.source_offset for key, stored in other.positions.items()}
    assert {BAR} == new


def test_a_position_that_is_written_during_a_read_is_not_replaced_by_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    load, loaded, released = OffsetsFile._load, threading.Event(), threading.Event()

    def load_until_released(file: OffsetsFile) -> dict[str, Any]:
        stored = load(file)
        loaded.set()
        released.wait()
        return stored

    async def main() -> OffsetsFile:
        file = store(tmp_path / "offsets")
        await file.open()
        await file.write([position(FOO, 5)], now_ms=1)
        monkeypatch.setattr(OffsetsFile, "_load", load_until_released)
        reading = asyncio.create_task(file.read_new())
        await asyncio.to_thread(loaded.wait)
        monkeypatch.setattr(OffsetsFile, "_load", load)
        is_held_back = file._writing.locked()
        writing = asyncio.create_task(file.write([position(FOO, 9)], now_ms=2))
        if not is_held_back:
            await writing
        released.set()
        await asyncio.gather(reading, writing)
        return file

    assert asyncio.run(main()).positions[FOO].source_offset == 9


def test_no_temporary_file_is_left(tmp_path: Path):
    """Only the file and its lock remain."""

    async def main() -> None:
        file_store = store(tmp_path / "o")
        await file_store.open()
        for offset in range(5):
            await file_store.write([position(FOO, offset)], now_ms=offset)

    asyncio.run(main())

    assert ["o", "o.lock"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff"])
def test_a_malformed_file_is_an_error_of_its_setting(tmp_path: Path, content: bytes):
    """It is neither read as empty nor overwritten."""
    path = tmp_path / "o"
    path.write_bytes(content)

    with pytest.raises(InvalidSettingError, match=r"offset\.storage\.file\.filename.*JSON"):
        asyncio.run(store(path).open())
    assert content == path.read_bytes()


def test_a_missing_folder_is_an_error_of_its_setting(tmp_path: Path):
    with pytest.raises(InvalidSettingError, match=r"offset\.storage\.file\.filename.*cannot be written"):
        asyncio.run(store(tmp_path / "none" / "o").open())


@pytest.mark.parametrize(
    ("records", "wins"),
    [
        ([Recency(8, 1_000), Recency(7, 9_000)], 0),  # the clock of the later writer is slow
        ([Recency(8, 1_000), Recency(None, 2_000)], 1),  # written by Java, or with an altered offset
        ([Recency(8, 3_000), Recency(None, 2_000), Recency(7, 4_000)], 0),
        ([Recency(None, 1_000), Recency(None, 2_000)], 1),
    ],
)
def test_the_newest_record_of_a_key_applies(records: list[Recency], wins: int):
    assert newest(dict(enumerate(records))) == wins
    assert newest(dict(reversed([*enumerate(records)]))) == wins


def test_a_record_with_an_altered_offset_is_compared_only_by_time():
    value = {"offset": 5, "mirrorflow.source.offset": 5, "mirrorflow.revision": 9}

    assert recency(json.dumps(value).encode(), 1_000) == Recency(9, 1_000)
    assert recency(json.dumps(value | {"offset": 4}).encode(), 1_000) == Recency(None, 1_000)
    assert recency(b'{"offset":5}', 1_000) == Recency(None, 1_000)
    assert recency(None, 1_000) == Recency(None, 1_000)
    assert recency(b"\xff", 1_000) == Recency(None, 1_000)
