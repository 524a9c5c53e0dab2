"""The manifest of an archive: what it holds, so that half an archive, or a changed one, is noticed. Pure.

It is written last, as `_manifest.json` in the archive's folder. JSON, so that other tools can read it; a name that begins
with `_` is passed over by Spark and DuckDB. Offsets are the source's; ranges go from their first offset up to, not
including, their end. A later format has another `format`, and is refused by who does not know it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_seed.archive.tally import Tally
from mirrorflow_seed.errors import ArchiveDamagedError

FORMAT: Final = 1
MANIFEST_NAME: Final = "_manifest.json"
CLAIM_NAME: Final = "_unfinished.json"  # who is writing here, until there is a manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    """One file: the records of its partition with offsets from `start` up to `end`."""

    path: str  # below the archive's folder
    size_bytes: int
    start: int
    end: int
    codec: int  # that the source's batches were compressed by, the first of them: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets that the source deleted while it was read."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """One partition; files in the order of offsets, none for a range without records."""

    number: int
    start: int
    end: int
    files: tuple[ArchivedFile, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        """How many."""
        return sum(one.tally.records for one in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedConfig:
    """A setting of a topic as the source described it; *source* is Kafka's number for where it came from."""

    name: str
    value: str | None
    source: int
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """One topic, by its name on the source."""

    name: str
    topic_id: str  # "" where the brokers have none
    configs: tuple[ArchivedConfig, ...]
    partitions: tuple[ArchivedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An archive."""

    archive_id: str  # random; the key of its digests
    flow: str
    source_alias: str
    source_cluster_id: str
    isolation: str  # read_uncommitted, read_committed: which records were taken
    started: str  # ISO 8601, UTC
    finished: str
    topics: tuple[ArchivedTopic, ...]

    @property
    def partitions(self) -> dict[TopicPartition, ArchivedPartition]:
        """All of them."""
        return {
            TopicPartition(topic.name, one.number): one for topic in self.topics for one in topic.partitions
        }

    @property
    def files(self) -> tuple[ArchivedFile, ...]:
        """All of them."""
        return tuple(file for one in self.partitions.values() for file in one.files)

    @property
    def records(self) -> int:
        """How many."""
        return sum(one.records for one in self.partitions.values())

    @property
    def gap_records(self) -> int:
        """Offsets that were lost while it was made."""
        return sum(gap.end - gap.start for one in self.partitions.values() for gap in one.gaps)


def folder_of(partition: TopicPartition) -> str:
    """Where its files are, below the archive's folder."""
    return f"topic={partition.topic}/partition={partition.partition}"


def encode(manifest: Manifest) -> bytes:
    """Its JSON."""
    return json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, ensure_ascii=False).encode()


def decode(text: bytes, *, location: str) -> Manifest:
    """What `encode` wrote. Raises ArchiveDamagedError."""
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
            location=location, problem=f"its manifest cannot be understood ({type(error).__name__})"
        ) from error


def differences(manifest: Manifest, found: Mapping[str, int]) -> Iterable[str]:
    """What does not fit the files that are there, *found* by path with their size in bytes; half a sentence each."""
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
