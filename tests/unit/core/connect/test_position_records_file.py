"""The file store is whole after every write, shared without loss, and clear about what it cannot do."""

import asyncio
from pathlib import Path

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import Position
from mirrorflow_kafka.stores.offsets_file import OffsetsFile

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
