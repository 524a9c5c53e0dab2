"""Defines the content of an archive: its topics, partitions and files, with the offsets and digests of each. Pure.

It is JSON, which other tools can read. Offsets are source offsets; ends are exclusive. A commit adds the content of an
increment to it (`commit_log`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    """One file, with the records of its partition with offsets from `start` up to `end`."""

    path: str  # relative to the archive's folder
    size_bytes: int
    start: int
    end: int
    codec: int  # compression of the first source batch: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets that the source deleted before they were exported."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """One partition, with its files in offset order; a range without records has no file.

    `end` is the next offset to export.
    """

    number: int
    start: int
    end: int
    files: tuple[ArchivedFile, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        return sum(file.tally.records for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedConfig:
    """A topic setting as the source described it; *source* is Kafka's config source number."""

    name: str
    value: str | None
    source: int
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """One topic, with its name on the source."""

    name: str
    topic_id: str  # "" if the brokers have no topic ids
    configs: tuple[ArchivedConfig, ...]
    partitions: tuple[ArchivedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of an archive, or of one increment."""

    archive_id: str  # random; the key of its digests
    flow: str
    source_alias: str
    source_cluster_id: str
    isolation: str  # read_uncommitted or read_committed, as the source was read
    started: str  # ISO 8601, UTC
    finished: str
    topics: tuple[ArchivedTopic, ...]

    @property
    def partitions(self) -> dict[TopicPartition, ArchivedPartition]:
        return {
            TopicPartition(topic.name, partition.number): partition
            for topic in self.topics
            for partition in topic.partitions
        }

    @property
    def files(self) -> tuple[ArchivedFile, ...]:
        return tuple(file for partition in self.partitions.values() for file in partition.files)

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions.values())

    @property
    def gap_records(self) -> int:
        """Number of offsets that the source deleted before they were exported."""
        return sum(gap.end - gap.start for partition in self.partitions.values() for gap in partition.gaps)


def folder_of(partition: TopicPartition) -> str:
    """Returns the folder of a partition's files, relative to the archive's folder."""
    return f"topic={partition.topic}/partition={partition.partition}"


def appended(before: Manifest, increment: Manifest) -> Manifest:
    """Returns the content of an archive after *increment*. Raises ValueError unless that continues *before*.

    Topics and partitions that the increment does not have are kept.
    """
    topics = {topic.name: topic for topic in before.topics}
    for topic in increment.topics:
        topics[topic.name] = _appended_topic(topics.get(topic.name), topic)
    return replace(
        before,
        finished=increment.finished,
        topics=tuple(topics[name] for name in sorted(topics)),
    )


def _appended_topic(before: ArchivedTopic | None, increment: ArchivedTopic) -> ArchivedTopic:
    if before is None:
        return increment
    partitions = {partition.number: partition for partition in before.partitions}
    for later in increment.partitions:
        earlier = partitions.get(later.number)
        if earlier is None:
            partitions[later.number] = later
            continue
        if later.start != earlier.end:
            raise ValueError(
                f"{increment.name}-{later.number} ends at {earlier.end} and continues at {later.start}"
            )
        partitions[later.number] = replace(
            earlier, end=later.end, files=earlier.files + later.files, gaps=earlier.gaps + later.gaps
        )
    return replace(increment, partitions=tuple(partitions[number] for number in sorted(partitions)))


def as_json(manifest: Manifest) -> dict[str, Any]:
    """Returns the manifest as a JSON object."""
    return asdict(manifest)


def from_json(raw: Mapping[str, Any]) -> Manifest:
    """Returns the manifest in a JSON object. Raises ValueError, TypeError, KeyError or AttributeError if it is none."""
    return Manifest(**{**raw, "topics": tuple(_topic(topic) for topic in raw["topics"])})


def differences(manifest: Manifest, present: Mapping[str, int]) -> Iterable[str]:
    """Yields a phrase for each file that is missing or was changed; *present* maps paths to sizes in bytes."""
    for file in manifest.files:
        size_bytes = present.get(file.path)
        if size_bytes is None:
            yield f"{file.path} is missing"
        elif size_bytes != file.size_bytes:
            yield f"{file.path} has {size_bytes} bytes, not {file.size_bytes}"


def _topic(raw: dict[str, Any]) -> ArchivedTopic:
    configs = tuple(ArchivedConfig(**config) for config in raw["configs"])
    partitions = tuple(_partition(partition) for partition in raw["partitions"])
    return ArchivedTopic(**{**raw, "configs": configs, "partitions": partitions})


def _partition(raw: dict[str, Any]) -> ArchivedPartition:
    files = tuple(ArchivedFile(**{**file, "tally": Tally(**file["tally"])}) for file in raw["files"])
    gaps = tuple(Gap(**gap) for gap in raw["gaps"])
    return ArchivedPartition(**{**raw, "files": files, "gaps": gaps})
