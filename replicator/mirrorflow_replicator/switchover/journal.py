"""The journal of a pair's switchovers, on both clusters, which one process at a time can write.

The lock is a transactional id of each cluster: a process takes it by initializing it, and everything is written in transactions of
it. So a process that was frozen meanwhile is refused at its next record, and changes nothing after that. Of two copies of a
record the newer one counts.

Besides records it has notes, which say what a switchover may have changed: the fence of each cluster, and where clients are led.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.java.json_text import integer_field, parsed_object, text_field
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.guards import unfinished_of
from mirrorflow_core.switchover.json_fields import decoded, objects_field
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.switchover.record import (
    SWITCHOVERS_TOPIC,
    NoSwitchoverRecordError,
    ReverseStart,
    SwitchoverRecord,
    decode_record,
    encode_record,
    newest_of_each,
    newest_record,
)
from mirrorflow_core.switchover.states import FENCED, PROMOTED
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_core.wire.error_codes import EPOCH_IS_OVER, NONE, raise_for
from mirrorflow_core.wire.records import Record, RecordOverLimitError, encode_split
from mirrorflow_core.writer.transactional_ids import switchover_lock
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import (
    PRODUCE_TIMEOUT_MS,
    MirrorLog,
    create_mirror_topic,
)
from mirrorflow_replicator.switchover.errors import SwitchoverError, SwitchoverTakenError
from mirrorflow_replicator.switchover.pair_settings import FenceKind

PARTITION: Final = TopicPartition(SWITCHOVERS_TOPIC, 0)
# A seal and the starts of the flow back have some 300 bytes for each partition. Compressed, 42 are left for each topic, as its ids
# are random, and 42 for each partition, as its digest is. So ten thousand topics fit in a batch of Kafka's default message.max.bytes
# (1,048,588).
_GZIP: Final = 1
RECORD_BYTES_MAX: Final = 1_000_000
# A process that dies in a transaction delays the next one, and readers, for so long.
_TRANSACTION_TIMEOUT_MS: Final = 10_000
# No process takes the lock from one whose last renewal is younger than `session.ABANDONED_S`. So a write that took less proves that this
# process has the lock now; a process that was frozen while it waited for the response may have lost it.
CONFIRMED_WITHIN_S: Final = 3.0
# Unlike `time.monotonic`, it includes the time that the machine sleeps: on Linux, and on macOS, which has only the second clock.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceNote:
    """The fence of a cluster as it was noted, PARTIAL while it is being changed, and the ACLs that may have been created for it.

    *methods* are those of `spec.fence.method` by which it was set.
    """

    state: FenceState = FenceState.ABSENT
    methods: frozenset[str] = frozenset()
    acls: frozenset[AclBinding] = frozenset()


class ClusterJournal:
    """The copy of the journal on one cluster."""

    def __init__(self, cluster: Cluster, pair: str, *, replication_factor: int = -1) -> None:
        self.alias = cluster.alias
        self.records: dict[str, SwitchoverRecord] = {}  # by the id of the switchover
        self.notes: dict[str, dict[str, Any]] = {}  # by name
        self._cluster = cluster
        self._pair = pair
        self._replication_factor = replication_factor
        self._log = MirrorLog(cluster, SWITCHOVERS_TOPIC)
        self._transactional_id = switchover_lock(pair)
        self._producer: tuple[int, int] | None = None
        self._sequence = 0
        self._attempted: set[tuple[bytes, bytes]] = set()  # by this process; perhaps written
        self._applied: set[tuple[bytes, bytes]] = set()  # those that are in `records` and `notes` already
        self._lock = asyncio.Lock()
        self._is_held = False
        self._is_foreign = False  # another process has written since this one took the lock

    async def exists(self) -> bool:
        """Returns whether the cluster has the topic. Raises ClusterError."""
        await self._cluster.refresh([SWITCHOVERS_TOPIC])
        return self._cluster.leader(*PARTITION) is not None

    async def take(self) -> None:
        """Takes the lock, whose former holder can write no more, and reads what that has written. Raises ClusterError, SwitchoverError."""
        factor, key = self._replication_factor, "spec.topics.replicationFactor"
        await create_mirror_topic(self._cluster, SWITCHOVERS_TOPIC, replication_factor=factor, key=key)
        async with self._lock:
            await self._initialize()
            await self._read()
        self._is_held, self._is_foreign = True, False

    async def read(self) -> None:
        """Reads what is new. Raises ClusterError, and SwitchoverError for a record of a newer version."""
        async with self._lock:
            await self._read()

    async def _read(self) -> None:
        async for record in self._log.read_new():
            if record.value is None:
                continue
            try:
                key = parsed_object(record.key or b"{}")
                pair, note = text_field(key, "pair"), text_field(key, "note")
                noted = parsed_object(record.value) if note else {}
                _require_valid(note, noted)
            except ValueError as error:
                self._skip(record, error)
                continue
            if pair != self._pair:
                continue
            content = bytes(record.key or b""), bytes(record.value)
            if content in self._applied:
                continue  # something newer of the same key may have been written since
            try:
                decoded = None if note else decode_record(record.key or b"", record.value)
            except NoSwitchoverRecordError as error:
                self._skip(record, error)
                continue
            except ValueError as error:
                self._is_foreign = True
                raise SwitchoverError(f"{PARTITION} of cluster {self.alias}: {error}.") from error
            self._is_foreign |= content not in self._attempted
            if decoded is None:
                self.notes[note] = noted
            else:
                self.records[decoded.id] = decoded

    def _skip(self, record: Record, error: ValueError) -> None:
        """Logs a record that MirrorFlow does not write. Another program's must not end a process while writes are refused."""
        log.warning(
            "Cluster %s: the record at offset %d of %s is skipped: %s",
            self.alias,
            record.offset,
            PARTITION,
            error,
        )

    async def write_record(self, record: SwitchoverRecord) -> None:
        """Writes *record*. Raises SwitchoverTakenError without the lock, ClusterError."""
        await self._write(*encode_record(record))
        self.records[record.id] = record

    async def write_note(self, name: str, value: dict[str, Any]) -> None:
        """Writes a note. Raises as `write_record`."""
        key = {"pair": self._pair, "note": name}
        await self._write(*(json.dumps(part, separators=(",", ":")).encode() for part in (key, value)))
        self.notes[name] = value

    async def _write(self, key: bytes, value: bytes) -> None:
        async with self._lock:
            await self._write_next(key, value)

    async def _write_next(self, key: bytes, value: bytes) -> None:
        if not self._is_held:
            raise SwitchoverTakenError(pair=self._pair)
        if self._producer is None:
            await self._take_again()
        producer, self._producer = self._producer, None
        assert producer is not None
        self._attempted.add((key, value))
        try:
            await self._commit(producer, key, value)
        except BrokerError as error:
            if error.code in EPOCH_IS_OVER:
                self._is_held = False
                raise SwitchoverTakenError(pair=self._pair) from error
            raise
        # After any error it is unknown what was written, so the id is initialized again before the next record.
        self._producer = producer
        self._applied.add((key, value))

    async def _take_again(self) -> None:
        """Takes the lock after an error. Raises SwitchoverTakenError if another process has written meanwhile."""
        await self._initialize()
        await self._read()
        if self._is_foreign:
            self._is_held = False
            raise SwitchoverTakenError(pair=self._pair)

    async def _initialize(self) -> None:
        self._producer = await admin.init_producer_id(
            self._cluster, self._transactional_id, timeout_ms=_TRANSACTION_TIMEOUT_MS
        )
        self._sequence = 0

    async def _commit(self, producer: tuple[int, int], key: bytes, value: bytes) -> None:
        cluster, name = self._cluster, self._transactional_id
        try:
            batches = encode_split(
                [Record(0, time.time_ns() // 1_000_000, key, value)],
                max_bytes=RECORD_BYTES_MAX,
                codec=_GZIP,
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=self._sequence,
                transactional=True,
            )
        except RecordOverLimitError as error:
            problem = (
                f"{error.size_bytes} bytes of the journal's next record are more than {RECORD_BYTES_MAX}"
            )
            action = "switch fewer topics, or fewer ACLs, in one pair"
            raise SwitchoverError(f"{PARTITION} of cluster {cluster.alias}: {problem}; {action}.") from error
        await admin.add_partitions_to_txn(cluster, name, *producer, [PARTITION])
        for data, count in batches:
            codes = await admin.produce(
                cluster, {PARTITION: data}, timeout_ms=PRODUCE_TIMEOUT_MS, transactional_id=name
            )
            if codes[PARTITION] != NONE:
                raise_for(codes[PARTITION], cluster=cluster.alias, request="Produce", subject=str(PARTITION))
            self._sequence += count
        await admin.end_txn(cluster, name, *producer, committed=True)


class SwitchoverJournal:
    """The journal of one pair: both copies, or one where only that cluster counts or responds.

    A process that holds the lock holds it on each of these clusters.
    """

    def __init__(self, copies: Sequence[ClusterJournal]) -> None:
        # One order for all processes, so that two of them do not hold one lock each.
        self._copies = sorted(copies, key=lambda copy: copy.alias)

    @property
    def records(self) -> tuple[SwitchoverRecord, ...]:
        """The records on both clusters."""
        return tuple(record for copy in self._copies for record in copy.records.values())

    @property
    def newest(self) -> SwitchoverRecord | None:
        """The record of the switchover that is under way, or that has ended last."""
        known = newest_of_each(self.records)
        return unfinished_of(known) or newest_record(known)

    @property
    def active(self) -> str | None:
        """The member that clients are led to; None before the first switchover."""
        promoted = [note["to"] for note in self._notes("endpoint")]
        return promoted[-1] if promoted else None

    @property
    def renewals(self) -> Sequence[Mapping[str, Any]]:
        """What the process that works has noted last; it changes every few seconds."""
        return [copy.notes.get("runner", {}) for copy in self._copies]

    async def records_on(self, alias: str) -> tuple[SwitchoverRecord, ...]:
        """Reads and returns the records on one cluster. Raises ClusterError, SwitchoverError."""
        (copy,) = (copy for copy in self._copies if copy.alias == alias)
        await copy.read()
        return tuple(copy.records.values())

    def fence_of(self, alias: str) -> FenceNote:
        """Returns the fence of cluster *alias*: what either copy says of it."""
        notes = self._notes(f"fence:{alias}")
        states = {FenceState(note["state"]) for note in notes}
        set_notes = [note for note in notes if note["state"] != FenceState.ABSENT.value]
        return FenceNote(
            methods=frozenset(note["method"] for note in set_notes),
            state=states.pop() if len(states) == 1 else FenceState.PARTIAL if states else FenceState.ABSENT,
            acls=frozenset(decoded(AclBinding, acl) for note in notes for acl in note["acls"]),
        )

    async def take(self) -> None:
        """Takes the lock on both clusters, and reads what its former holder has written. Raises ClusterError, SwitchoverError."""
        for copy in self._copies:
            await copy.take()

    async def read(self) -> None:
        """Reads both copies where they exist. Raises ClusterError, SwitchoverError."""
        for copy in self._copies:
            if await copy.exists():
                await copy.read()

    async def write(self, record: SwitchoverRecord) -> None:
        """Writes *record* where it counts, then to the other side. Raises SwitchoverTakenError, ClusterError."""
        if record.state in FENCED:
            # Only a promotion and a rollback have an order: a process that resumes one of these reads both copies.
            await _write_concurrently(copy.write_record(record) for copy in self._copies)
            return
        for copy in sorted(self._copies, key=lambda copy: copy.alias != record.written_first):
            await copy.write_record(record)

    async def confirm(self, alias: str) -> None:
        """Checks that this process still has the lock on cluster *alias*. Raises SwitchoverTakenError, ClusterError.

        It is for changes that no note announces: a process that has slept must not undo what its successor has done. Without
        a copy there, the lock on the other cluster counts.
        """
        for copy in [copy for copy in self._copies if copy.alias == alias] or self._copies:
            await _confirming(partial(copy.write_note, "confirmed", {}))

    async def write_fence(
        self, alias: str, state: FenceState, *, method: FenceKind, acls: Iterable[AclBinding] = ()
    ) -> None:
        """Notes the fence of cluster *alias*, before it is set and after it was lifted. Raises as `write`."""
        value = {
            "state": state.value,
            "method": method.value,
            "acls": [asdict(acl) for acl in sorted(acls)],
        }
        # Each by itself: after a fence was lifted, the other cluster may be lost.
        await _confirming(
            lambda: _write_concurrently(copy.write_note(f"fence:{alias}", value) for copy in self._copies)
        )

    async def write_endpoint(self, to: str) -> None:
        """Notes where clients were led, after that was done. Raises as `write`."""
        number = 1 + max((note["number"] for note in self._notes("endpoint")), default=0)
        # Each by itself: once promoted, a source that is lost is not waited for.
        value = {"to": to, "number": number}
        await _write_concurrently(copy.write_note("endpoint", value) for copy in self._copies)

    async def write_starts(self, alias: str, starts: Iterable[ReverseStart]) -> None:
        """Notes where the flow from cluster *alias* starts, for a switchover that has no record of it. Raises as `write`."""
        value = {"starts": [asdict(start) for start in starts]}
        await _write_concurrently(copy.write_note(f"starts:{alias}", value) for copy in self._copies)

    def starts_on(self, alias: str) -> tuple[ReverseStart, ...]:
        """Returns where switchovers to *alias* have started the flow from it; of several for a partition the last one counts."""
        notes = self._notes(f"starts:{alias}")
        noted = [decoded(ReverseStart, start) for note in notes for start in note["starts"]]
        promoted = [record for record in self.records if record.to == alias and record.state in PROMOTED]
        return (*(start for record in promoted for start in record.reverse_starts), *noted)

    async def write_renewal(self, runner: str, number: int) -> None:
        """Notes on each cluster that *runner* works; *number* differs each time. Raises as `write`.

        They do not wait for each other: a process that reads one of them alone must see it, although the other one is lost.
        """
        note = {"runner": runner, "renewal": number}
        results = await asyncio.gather(
            *(copy.write_note("runner", note) for copy in self._copies), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _notes(self, name: str) -> list[Mapping[str, Any]]:
        """Returns both copies of a note, the newer one last where they are numbered."""
        notes = [copy.notes[name] for copy in self._copies if name in copy.notes]
        return sorted(notes, key=lambda note: note.get("number", 0))


def _require_valid(note: str, fields: dict[str, Any]) -> None:
    """Raises ValueError if *fields* lack what the journal reads of the note."""
    kind = note.partition(":")[0]
    if kind == "endpoint":
        integer_field(fields, "number")
        if not text_field(fields, "to"):
            raise ValueError("to is missing")
    elif kind == "fence":
        FenceState(text_field(fields, "state"))
        text_field(fields, "method")
        for acl in objects_field(fields, "acls"):
            decoded(AclBinding, acl)
    elif kind == "starts":
        for start in objects_field(fields, "starts"):
            decoded(ReverseStart, start)


async def _confirming(write: Callable[[], Awaitable[None]]) -> None:
    """Calls *write*, which shows that this process has the lock; once more if that was too long ago. Raises as *write*."""
    began_s = time.clock_gettime(_CLOCK)
    await write()
    if time.clock_gettime(_CLOCK) - began_s > CONFIRMED_WITHIN_S:
        await write()


async def _write_concurrently(writes: Iterable[Awaitable[None]]) -> None:
    """Waits until all *writes* have ended; raises the error of the first that has failed."""
    for outcome in await asyncio.gather(*writes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
