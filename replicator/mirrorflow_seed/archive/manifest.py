"""Defines the content of an archive: its topics, partitions and files, with the offsets and digests of each. Pure.

It is JSON, which other tools can read. Offsets are source offsets; ends are exclusive. A commit adds the content of an
increment to it (`commit_log`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_seed.archive.record_tally import Tally

# Files without times. After every hour as text, so that no query for a time finds them.
NO_HOUR: Final = "none"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBounds:
    """The first and the last time of some records, in ms since 1970; None if none has a time up to the year 9999."""

    first_ms: int | None = None
    last_ms: int | None = None
    has_later: bool = False  # a record has a time after the year 9999, such as one in microseconds

    def joined(self, other: "TimeBounds") -> "TimeBounds":
        """Returns the bounds of both."""
        return TimeBounds(
            first_ms=min(_known(self.first_ms, other.first_ms), default=None),
            last_ms=max(_known(self.last_ms, other.last_ms), default=None),
            has_later=self.has_later or other.has_later,
        )


def _known(*times_ms: int | None) -> list[int]:
    return [time_ms for time_ms in times_ms if time_ms is not None]


NO_TIMES: Final = TimeBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    """One file, with the records of its partition with offsets from `start` up to `end`."""

    path: str  # relative to the archive's folder
    size_bytes: int
    start: int
    end: int
    codec: int  # compression of the first source batch: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    tally: Tally
    times: TimeBounds = NO_TIMES


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
class ArchivedOffset:
    """The offset that a group had committed for a partition of the source, and its metadata."""

    topic: str
    partition: int
    offset: int  # of the next record to read
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedGroup:
    """A consumer group of the source, with its offsets on archived topics."""

    name: str
    offsets: tuple[ArchivedOffset, ...]


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
    groups: tuple[ArchivedGroup, ...] = ()
    groups_read_ms: int | None = None  # when `groups` were read, just before the end offsets; None: never
    acls: tuple[AclBinding, ...] | None = None  # of the source's topics; None: they were not read

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


def folder_of(partition: TopicPartition, times: TimeBounds) -> str:
    """Returns the folder of a file of *partition* with *times*, relative to the archive's folder.

    Engines read the columns of a folder's name without opening its files, so a query for some hours opens few.
    """
    first, last = _hour(times.first_ms), _hour(times.last_ms)
    return f"topic={partition.topic}/partition={partition.partition}/first_hour={first}/last_hour={last}"


def _hour(time_ms: int | None) -> str:
    """Returns the hour in UTC, as text whose order is that of time: `2026-11-22T13`; `none` without a time."""
    if time_ms is None:
        return NO_HOUR
    return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%dT%H")


def part_of(manifest: Manifest, topic_name: str, partition: ArchivedPartition) -> Manifest:
    """Returns the content of one partition alone, for a task: without groups and ACLs."""
    topic = next(topic for topic in manifest.topics if topic.name == topic_name)
    topics = (replace(topic, partitions=(partition,)),)
    return replace(manifest, topics=topics, groups=(), groups_read_ms=None, acls=None)


def appended(before: Manifest, increment: Manifest) -> Manifest:
    """Returns the content of an archive after *increment*. Raises ValueError unless that continues *before*.

    Topics and partitions that the increment does not have are kept, and groups and ACLs if it has not read any.
    """
    topics = {topic.name: topic for topic in before.topics}
    for topic in increment.topics:
        topics[topic.name] = _appended_topic(topics.get(topic.name), topic)
    return replace(
        before,
        finished=increment.finished,
        topics=tuple(topics[name] for name in sorted(topics)),
        groups=before.groups if increment.groups_read_ms is None else increment.groups,
        groups_read_ms=before.groups_read_ms
        if increment.groups_read_ms is None
        else increment.groups_read_ms,
        acls=before.acls if increment.acls is None else increment.acls,
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
    acls = raw["acls"]
    return Manifest(
        **{
            **raw,
            "topics": tuple(_topic(topic) for topic in raw["topics"]),
            "groups": tuple(_group(group) for group in raw["groups"]),
            "acls": None if acls is None else tuple(AclBinding(**acl) for acl in acls),
        }
    )


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


def _group(raw: dict[str, Any]) -> ArchivedGroup:
    return ArchivedGroup(
        name=raw["name"], offsets=tuple(ArchivedOffset(**offset) for offset in raw["offsets"])
    )


def _partition(raw: dict[str, Any]) -> ArchivedPartition:
    files = tuple(
        ArchivedFile(**{**file, "tally": Tally(**file["tally"]), "times": TimeBounds(**file["times"])})
        for file in raw["files"]
    )
    gaps = tuple(Gap(**gap) for gap in raw["gaps"])
    return ArchivedPartition(**{**raw, "files": files, "gaps": gaps})
