"""Position bytes are Java's, byte for byte; ours ride along; nothing that stands in the topic can crash a reader."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

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


# Printed by Java's JsonConverter of 4.3.1 for the map that MirrorUtils.wrapPartition makes, with the partition that
# Utils.murmur2 gives of 25.
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
def test_keys_are_java_bytes(key: PositionKey, expected: str, partition: int):
    """Field order, escapes and partition are what Java's converter and partitioner give."""
    assert (expected.encode(), partition) == (encode_key(key), partition_for(encode_key(key), 25))


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        (b'["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"foo"}]', 16),
        (b'["MirrorCheckpointConnector",{"partition":0,"topic":"A.foo","group":"g1"}]', 18),
        (b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]', 0),
    ],
)
def test_partitions_are_java_partitions(key: bytes, partition: int):
    """The three example keys go where Java's producer sends them."""
    assert partition == partition_for(key, 25)


def test_a_position_with_topic_ids_is_read():
    expected = replace(KNOWN, source_topic_id="AbC", target_topic_id="xYz")

    assert read(json.dumps(WITH_TOPIC_IDS).encode()) == Stored(key=KEY, position=expected)


def test_a_bare_position_is_java_value():
    """Where nothing but the offset is known, the value is Java's own."""
    assert encode_value(Position(topic="foo", partition=0, source_offset=123)) == b'{"offset":123}'


def test_a_position_names_the_leader_epoch_and_its_time():
    assert json.loads(encode_value(KNOWN)) == {
        "offset": 123,
        "mirrorflow.source.offset": 123,
        "mirrorflow.source.epochs": "7",
        "mirrorflow.written.ms": 1_800,
    }


def test_values_are_flat():
    """Java refuses nested fields, so there are none."""
    fields = json.loads(encode_value(KNOWN))

    assert [] == [name for name, value in fields.items() if not isinstance(value, int | str | bool)]


@given(POSITIONS)
def test_what_is_written_is_read(position: Position):
    assert Stored(key=KEY, position=position) == read(encode_value(position))


def test_java_values_have_the_offset_alone():
    """A value of Java MM2 gives the offset and nothing else."""
    expected = Stored(key=KEY, position=Position(topic="foo", partition=0, source_offset=7))

    assert expected == read(b'{"offset":7}')


@pytest.mark.parametrize("value", [None, b'{"offset":-1}', b'{"offset":null}', b"{}"])
def test_what_java_takes_for_none_is_a_reset(value: bytes | None):
    """Tombstones, and the offsets that Java treats as uncommitted."""
    assert Reset(key=KEY) == read(value)


def test_an_altered_offset_voids_our_fields():
    """A writer that changes the offset and leaves our fields has changed the offset only."""
    altered = read(json.dumps({**WITH_TOPIC_IDS, "offset": 5}).encode())

    assert isinstance(altered, Stored)
    assert replace(altered, warning="") == Stored(
        key=KEY, position=Position(topic="foo", partition=0, source_offset=5)
    )
    assert "altered" in altered.warning


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
def test_broken_fields_of_ours_leave_the_offset(name: str, value: object):
    """A value half broken is as good as Java's, and says so."""
    found = read(json.dumps({**WITH_TOPIC_IDS, f"mirrorflow.{name}": value}).encode())

    assert isinstance(found, Stored)
    assert (123, -1, True) == (found.position.source_offset, found.position.source_epoch, bool(found.warning))


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"\xff", b'{"offset":"1"}', b'{"offset":true}', b'{"offset":1.5}']
)
def test_broken_values_are_named(value: bytes):
    """The problem names the partition and not the value."""
    found = read(value)

    assert isinstance(found, Malformed)
    assert "foo-0" in found.problem


def test_a_key_java_would_not_find_is_named():
    """A key with other spaces is a different key to Java, so it is ignored."""
    found = read(
        b'{"offset":1}', key=b'["MirrorSourceConnector", {"cluster":"A","partition":0,"topic":"foo"}]'
    )

    assert isinstance(found, Malformed)


@pytest.mark.parametrize(
    "key",
    [
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]',
        b'["other",{"cluster":"A","partition":0,"topic":"foo"}]',
        b'["MirrorSourceConnector",{"cluster":"Z","partition":0,"topic":"foo"}]',
        b'["MirrorSourceConnector",{"file":"x"}]',
    ],
)
def test_keys_of_others_are_passed_over(key: bytes):
    """Other connectors share the topic."""
    assert read(b'{"offset":1}', key=key) is None


@given(st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_no_bytes_crash_the_reader(key: bytes | None, value: bytes | None):
    """Anything may stand in a topic."""
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


def test_positions_outlive_the_process(tmp_path: Path):
    """Another process reads what the first one wrote last."""

    async def main() -> OffsetsFile:
        first = store(tmp_path / "offsets")
        await first.open()
        await first.write([position(FOO, 5)], now_ms=1_000)
        await first.write([position(FOO, 9)], now_ms=30_000)
        second = store(tmp_path / "offsets")
        await second.open()
        return second

    found = asyncio.run(main()).positions[FOO]

    assert (found.source_offset, found.source_epoch, found.written_ms) == (9, 1, 30_000)


def test_processes_share_a_file(tmp_path: Path):
    """Two tasks and another connector write in turn; each finds its own."""

    async def main() -> tuple[OffsetsFile, OffsetsFile, frozenset[TopicPartition]]:
        one, two, other = (store(tmp_path / "o", name) for name in ("c", "c", "other"))
        for each in (one, two, other):
            await each.open()
        await one.write([position(FOO, 1)], now_ms=1)
        await other.write([position(FOO, 7)], now_ms=1)
        await two.write([position(BAR, 2)], now_ms=1)
        news = await one.read_new()
        await other.read_new()
        return one, other, news

    one, other, news = asyncio.run(main())

    assert {FOO: 1, BAR: 2} == {key: found.source_offset for key, found in one.positions.items()}
    assert {FOO: 7} == {key: found.source_offset for key, found in other.positions.items()}
    assert {BAR} == news


def test_no_half_written_file_is_left(tmp_path: Path):
    """Only the file and its lock remain."""

    async def main() -> None:
        one = store(tmp_path / "o")
        await one.open()
        for offset in range(5):
            await one.write([position(FOO, offset)], now_ms=offset)

    asyncio.run(main())

    assert ["o", "o.lock"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes):
    """A file that is not ours is neither read as empty nor overwritten."""
    path = tmp_path / "o"
    path.write_bytes(content)

    with pytest.raises(InvalidSettingError, match=r"offset\.storage\.file\.filename.*JSON"):
        asyncio.run(store(path).open())
    assert content == path.read_bytes()


def test_a_folder_that_is_missing_is_named(tmp_path: Path):
    """The error says which setting to change."""
    with pytest.raises(InvalidSettingError, match=r"offset\.storage\.file\.filename.*cannot be written"):
        asyncio.run(store(tmp_path / "none" / "o").open())


@pytest.mark.parametrize(
    ("records", "wins"),
    [
        ([Recency(8, 1_000), Recency(7, 9_000)], 0),  # the clock of the later writer is behind
        ([Recency(8, 1_000), Recency(None, 2_000)], 1),  # Java's, or altered
        ([Recency(8, 3_000), Recency(None, 2_000), Recency(7, 4_000)], 0),
        ([Recency(None, 1_000), Recency(None, 2_000)], 1),
    ],
)
def test_the_newest_record_of_a_key_counts(records: list[Recency], wins: int):
    assert newest(dict(enumerate(records))) == wins
    assert newest(dict(reversed([*enumerate(records)]))) == wins


def test_an_altered_offset_has_only_its_time():
    value = {"offset": 5, "mirrorflow.source.offset": 5, "mirrorflow.revision": 9}

    assert recency(json.dumps(value).encode(), 1_000) == Recency(9, 1_000)
    assert recency(json.dumps(value | {"offset": 4}).encode(), 1_000) == Recency(None, 1_000)
    assert recency(b'{"offset":5}', 1_000) == Recency(None, 1_000)
    assert recency(None, 1_000) == Recency(None, 1_000)
    assert recency(b"\xff", 1_000) == Recency(None, 1_000)
