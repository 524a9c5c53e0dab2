"""What partition copiers use of their task, for tests of single modules."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mirrorflow_core.offset_map import MapStream
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.transforms import RenameRule
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.flow_plan import WritePoint
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.stream import Stream
from mirrorflow_replicator.copy.copier_context import CopierContext
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_writer import PartitionWriter
from mirrorflow_replicator.copy.write_mode_tracker import WriteModeTracker

PRODUCERS = {WriteMode.TRANSACTION: Producer("t", 1, 16), WriteMode.PLAIN: Producer("t-plain", 2, 16)}
MAP_STREAM = MapStream(0, "s", "t")
START = OffsetPair(source_offset=99, ordinal=-1, target_offset=-1)


def context_at(
    now_ms: int, *, changed: Callable[[PartitionCopier], None] = lambda _: None, unfenced_why: str = ""
) -> CopierContext:
    """A context whose callbacks do nothing, but for *changed*."""
    writer: Any = SimpleNamespace(want=lambda _: None, sent=lambda _: None, emptied=lambda _: None)
    return CopierContext(
        read_committed=False,
        schedule_resume=lambda _: None,
        on_fetch_error=lambda *_: None,
        on_produce_error=lambda *_: None,
        stopped=lambda *_: None,
        changed=changed,
        clock_ms=lambda: now_ms,
        writer=writer,
        plain_producer=PRODUCERS[WriteMode.PLAIN],
        unfenced_why=unfenced_why,
    )


def begun_writer(context: CopierContext, partition: int = 2) -> PartitionWriter:
    """The writer of a copier that has begun at source offset 100 in plain batches."""
    copier = PartitionCopier(TopicPartition("orders", partition), RenameRule(name="east.orders"), context)
    point = WritePoint(next_source_offset=100, source_epoch=-1, sequence=-1, target_end=0, target_epoch=0)
    mode = WriteModeTracker(point, PRODUCERS, is_fenced=context.is_fenced)
    pipe: Any = SimpleNamespace(
        ready=lambda _: None, request_bytes=1 << 20, expects_answer_by=lambda since_s: since_s
    )
    writing = PartitionWriter(copier, pipe, mode, Stream(START), MAP_STREAM)
    copier.resume(writing, START)
    return writing


def begun_copier(context: CopierContext, partition: int = 2) -> PartitionCopier:
    """A copier that has begun at source offset 100 in plain batches."""
    return begun_writer(context, partition).copier
