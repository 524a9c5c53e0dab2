"""Copiers, sessions and records for tests of single modules."""

from mirrorflow_core.copying.batch_packer import Packer
from mirrorflow_core.copying.effects import Effects, Signal
from mirrorflow_core.copying.membership import TransactionMembership
from mirrorflow_core.copying.partition import PartitionCopier, ResumeFacts
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.offsets.offset_map import MapStream
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.wire.produce import Buffer
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.flow_plan import SessionStart, TaskProducers, WritePoint
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.stream import Span
from mirrorflow_core.writer.write_mode import ChangeMode
from tests.unit.core.wire.strategies import batch_of

PRODUCERS = TaskProducers(transactional=Producer("t", 1, 16), plain=Producer("t-plain", 2, 16))
MAP_STREAM = MapStream(0, "s", "t")
POINT = WritePoint(
    next_source_offset=100,
    source_epoch=-1,
    sequence=-1,
    target_end=0,
    target_epoch=0,
    records=0,
    records_end=0,
)
RESUME_FACTS = ResumeFacts(is_connected=True, source_topic_id="s", target_topic_id="t", target_epoch=0)
REQUEST_BYTES = 1 << 20


def new_session(
    *,
    unfenced_reason: str | None = None,
    skips_refused: bool = False,
    read_committed: bool = False,
    loss_policy: LossPolicy = LossPolicy.FAIL,
    partitions: int = 10,
) -> CopySession:
    """A session that copies partitions 0, 1, ... of topic orders from source offset 100."""
    points = {TopicPartition("orders", number): POINT for number in range(partitions)}
    start = SessionStart(producers=PRODUCERS, points=points, problems={}, unfenced_reason=unfenced_reason)
    return CopySession(
        start=start,
        source_alias="east",
        target_alias="west",
        skips_refused=skips_refused,
        read_committed=read_committed,
        loss_policy=loss_policy,
    )


def new_copier(
    session: CopySession, partition: int = 2, target_topic: str = "east.orders"
) -> PartitionCopier:
    """A copier that has not started."""
    source = TopicPartition("orders", partition)
    packer = Packer(source.topic, partition, target_topic, PRODUCERS.plain)
    return PartitionCopier(source, target_topic, session, packer)


def begun_copier(now_ms: int, session: CopySession | None = None, partition: int = 2) -> PartitionCopier:
    """A copier that has started at source offset 100 in plain batches."""
    copier = new_copier(session or new_session(), partition)
    resume(copier, now_ms)
    return copier


def resume(copier: PartitionCopier, now_ms: int) -> Effects:
    """Resumes *copier*, which has nothing in flight."""
    return copier.resumed(RESUME_FACTS, now_ms)


def send(copier: PartitionCopier, now_ms: int) -> Buffer | None:
    """The next batch of *copier*, or None."""
    return copier.next_batch(now_ms, REQUEST_BYTES)[0]


def put_in_flight(copier: PartitionCopier, count: int, *, skipped: int = 0) -> Span:
    """Has *copier* send a batch of *count* records, followed by *skipped* source offsets without records."""
    stream = copier.stream
    assert stream is not None
    first_offset = stream.next_offset
    span = Span(
        first=stream.next_ordinal,
        count=count,
        base_offset=first_offset,
        next_offset=first_offset + count + skipped,
        max_timestamp=0,
        size_bytes=900,
    )
    stream.take(span)
    return span


def records_of(timestamp_ms: int, count: int = 3) -> list[Record]:
    """*count* records with timestamps from *timestamp_ms* on."""
    return [Record(0, timestamp_ms + number, b"k", b"v") for number in range(count)]


def want_transaction(copier: PartitionCopier, now_ms: int) -> None:
    """Has *copier* request to join the transaction with three records that are too old for plain batches."""
    assert copier.stream is not None
    write_in_transactions(copier, now_ms)
    records = records_of(now_ms - copier.session.plain_age_limit_ms - 1_000)
    copier.packer.add(batch_of(records, base_offset=copier.stream.next_offset))
    assert send(copier, now_ms) is None
    assert copier.membership is TransactionMembership.WANTED


def write_in_transactions(copier: PartitionCopier, now_ms: int) -> None:
    """Has *copier* write in transactions from its next record on."""
    assert copier.stream is not None
    copier.change_mode(ChangeMode(WriteMode.TRANSACTION, copier.stream.next_offset, -1), now_ms)


def signals(effects: Effects) -> set[Signal]:
    """The effects that are plain signals."""
    return {effect for effect in effects if isinstance(effect, Signal)}
