"""The seal: where each partition of the source ended when no application could write any more.

It is a value: a process that has it can decide from the target alone whether everything was copied, and whether each copy ends with the
newest records of the source. It does not prove more: records before those that `PartitionSeal.records` counts are not in its digest. Its
JSON has one form, so its SHA-256 identifies it. It is stored in the record of its switchover, on both clusters.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_core.java.json_text import integer_field
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.json_fields import by_partition, decoded

SEAL_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeal:
    """The sealed end of one partition of the source; offsets are exclusive: the next one to be written or copied."""

    topic: str
    partition: int
    topic_id: str
    end: int
    last_stable: int  # equals `end`: no transaction was open
    copied: int  # the source offset that the forward flow had committed when the source was sealed
    records: int = 0  # how many of the newest records before `end` the digest covers
    digest: str = ""  # of these records, in their order, as they are copied; "": not taken

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The sealed ends of all partitions of a flow, sorted by topic and partition."""

    pair: str
    switchover: str  # its id
    epoch: int
    attempt: int  # of the fence; a new attempt has a new seal, even with equal ends
    digest_key: str = ""  # of the digests of all partitions
    partitions: tuple[PartitionSeal, ...]

    def __post_init__(self) -> None:
        assert list(self.partitions) == sorted(self.partitions, key=lambda seal: seal.topic_partition)

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """The end of each partition."""
        return {seal.topic_partition: seal.end for seal in self.partitions}

    @property
    def sha256(self) -> str:
        """The SHA-256 of the seal's JSON, in hexadecimal."""
        return hashlib.sha256(encode_seal(self)).hexdigest()


def encode_seal(seal: Seal) -> bytes:
    """Returns the seal as JSON: keys sorted, no spaces, ASCII."""
    return json.dumps(seal_fields(seal), sort_keys=True, separators=(",", ":")).encode()


def seal_fields(seal: Seal) -> dict[str, Any]:
    """Returns the seal as fields of JSON. Writes are refused meanwhile: `asdict` takes ten times as long."""
    return {
        "format": SEAL_FORMAT,
        "pair": seal.pair,
        "switchover": seal.switchover,
        "epoch": seal.epoch,
        "attempt": seal.attempt,
        "digest_key": seal.digest_key,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "topic_id": partition.topic_id,
                "end": partition.end,
                "last_stable": partition.last_stable,
                "copied": partition.copied,
                "records": partition.records,
                "digest": partition.digest,
            }
            for partition in seal.partitions
        ],
    }


def seal_of(fields: dict[str, Any]) -> Seal:
    """Returns the seal that *fields* of JSON describe. Raises ValueError."""
    if integer_field(fields, "format") != SEAL_FORMAT:
        raise ValueError("the seal was written by a newer version of MirrorFlow; use that version")
    return decoded(Seal, {**fields, "partitions": by_partition(fields)})
