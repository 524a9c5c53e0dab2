"""Defines the manifest of an archive, which lists its content and so detects an incomplete or changed archive. Pure.

It is written last, as `_manifest.json` in the archive's folder. It is JSON, which other tools can read; Spark and
DuckDB ignore names that begin with `_`. Offsets are source offsets; ends are exclusive. A later
format has another `format` number, which this version refuses.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.errors import ArchiveDamagedError
from mirrorflow_seed.verify.record_digests import Tally

FORMAT: Final = 1
MANIFEST_NAME: Final = "_manifest.json"
CLAIM_NAME: Final = "_unfinished.json"  # names the run that writes here, until there is a manifest


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
    """Offsets that the source deleted during the export."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """One partition, with its files in offset order; a range without records has no file."""

    number: int
    start: int
    end: int
    files: tuple[ArchivedFile, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        return sum(one.tally.records for one in self.files)


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
    """The content of an archive."""

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
            TopicPartition(topic.name, one.number): one for topic in self.topics for one in topic.partitions
        }

    @property
    def files(self) -> tuple[ArchivedFile, ...]:
        return tuple(file for one in self.partitions.values() for file in one.files)

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions.values())

    @property
    def gap_records(self) -> int:
        """Number of offsets that the source deleted during the export."""
        return sum(gap.end - gap.start for one in self.partitions.values() for gap in one.gaps)


def folder_of(partition: TopicPartition) -> str:
    """Returns the folder of a partition's files, relative to the archive's folder."""
    return f"topic={partition.topic}/partition={partition.partition}"


def encode(manifest: Manifest) -> bytes:
    """Returns the manifest as JSON."""
    return json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, ensure_ascii=False).encode()


def decode(text: bytes, *, location: str) -> Manifest:
    """Returns the manifest in the JSON *text*. Raises ArchiveDamagedError."""
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise ArchiveDamagedError(
                location=location,
                problem=f"its format is {raw['format']}, and this version reads format {FORMAT}",
            )
        del raw["format"]
        return Manifest(**{**raw, "topics": tuple(_topic(one) for one in raw["topics"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArchiveDamagedError(
            location=location, problem=f"its manifest cannot be parsed ({type(error).__name__})"
        ) from error


def differences(manifest: Manifest, found: Mapping[str, int]) -> Iterable[str]:
    """Yields a phrase for each difference from the existing files; *found* maps paths to sizes in bytes."""
    for file in manifest.files:
        size_bytes = found.get(file.path)
        if size_bytes is None:
            yield f"{file.path} is missing"
        elif size_bytes != file.size_bytes:
            yield f"{file.path} has {size_bytes} bytes, not {file.size_bytes}"
    known = {file.path for file in manifest.files}
    for path in sorted(found.keys() - known):
        yield f"{path} is not part of it"


def _topic(raw: dict[str, Any]) -> ArchivedTopic:
    configs = tuple(ArchivedConfig(**one) for one in raw["configs"])
    partitions = tuple(_partition(one) for one in raw["partitions"])
    return ArchivedTopic(**{**raw, "configs": configs, "partitions": partitions})


def _partition(raw: dict[str, Any]) -> ArchivedPartition:
    files = tuple(ArchivedFile(**{**one, "tally": Tally(**one["tally"])}) for one in raw["files"])
    gaps = tuple(Gap(**one) for one in raw["gaps"])
    return ArchivedPartition(**{**raw, "files": files, "gaps": gaps})
