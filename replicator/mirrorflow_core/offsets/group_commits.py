"""Reads the offset commits of a log partition of `__consumer_offsets`, as its group coordinator does.

Key versions 0 and 1 are offset commits. Later ones are group metadata and the records of newer coordinators; they are
skipped. A commit inside a transaction counts when the transaction's marker says so, unless a newer commit of the same group and
partition was applied before. A null value is a deletion. Sources: OffsetCommitKey.json, OffsetCommitValue.json,
GroupMetadata.completePendingTxnOffsetCommit.
"""

import struct
from typing import Final, NamedTuple

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.fetch import is_abort_marker
from mirrorflow_core.wire.primitives import Cursor
from mirrorflow_core.wire.records import Record, decode

GROUP_OFFSETS_TOPIC: Final = "__consumer_offsets"
_KEY_VERSION_MAX: Final = 1
_VALUE_VERSION_MAX: Final = 4
_LEADER_EPOCH_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 4
Key = tuple[str, TopicPartition]  # group and partition


class GroupCommit(NamedTuple):
    """An offset that a group has committed; None: it was deleted."""

    group: str
    partition: TopicPartition
    committed: Committed | None


def decode_commit(record: Record) -> GroupCommit | None:
    """Returns the offset commit of *record*; None for other records. Raises CorruptRecordsError."""
    if record.key is None:
        return None
    try:
        key = Cursor(memoryview(record.key), flexible=False)
        if key.int16() > _KEY_VERSION_MAX:
            return None
        group, topic, partition = key.string(), key.string(), key.int32()
        committed = None if record.value is None else _committed(record.value)
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptRecordsError(
            f"the offset commit at offset {record.offset} cannot be decoded: {error}"
        ) from error
    return GroupCommit(group, TopicPartition(topic, partition), committed)


def _committed(data: bytes) -> Committed:
    value = Cursor(memoryview(data), flexible=False)
    version = value.int16()
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise ValueError(f"its version {version} is not known")
    offset = value.int64()
    if version >= _LEADER_EPOCH_SINCE:
        value.int32()
    rest = Cursor(value.data, flexible=version >= _FLEXIBLE_SINCE, index=value.index)
    return Committed(offset=offset, metadata=rest.string())


class PartitionCommits:
    """The commits of one log partition that count, from batches in the order of the log."""

    def __init__(self) -> None:
        # By producer id: commits of its open transaction, with their log offsets.
        self._pending: dict[int, dict[Key, tuple[int, GroupCommit]]] = {}

    def take(self, batch: Batch) -> list[GroupCommit]:
        """Returns the commits that count because of *batch*. Raises CorruptRecordsError."""
        if batch.is_control:
            ended = self._pending.pop(batch.producer_id, {})
            if is_abort_marker(batch):
                return []
            return [self._applied(offset, commit) for offset, commit in ended.values()]
        commits = [
            (record.offset, commit)
            for record in decode(batch)
            if (commit := decode_commit(record)) is not None
        ]
        if not batch.is_transactional:
            return [self._applied(offset, commit) for offset, commit in commits]
        pending = self._pending.setdefault(batch.producer_id, {})
        pending.update({(commit.group, commit.partition): (offset, commit) for offset, commit in commits})
        return []

    def _applied(self, log_offset: int, commit: GroupCommit) -> GroupCommit:
        """Returns *commit*, and forgets older ones of open transactions, which count no more."""
        key = (commit.group, commit.partition)
        for pending in self._pending.values():
            if key in pending and pending[key][0] < log_offset:
                del pending[key]
        return commit
