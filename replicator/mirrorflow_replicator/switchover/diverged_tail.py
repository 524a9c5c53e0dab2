"""Cuts out and counts the diverged tails of the cluster that applications have left unplanned, when that has returned.

    fence the old side ──> wait until its ends stay ──> cut out the tails ──> read and count them

Nothing is written to the old side but its fence. `tail_keeping` writes the tails to the new side.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover.diverged_tail import (
    REFUSED,
    CopiedEnd,
    DivergedTail,
    ReturnedLog,
    TailCount,
    TailState,
    cut_tail,
)
from mirrorflow_core.switchover.observation import FenceState, PartitionEnd
from mirrorflow_core.writer.broker_requests import Unavailable, gather, until_unavailable
from mirrorflow_core.writer.partition_start import end_in_source
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_replication_policy
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.switchover.errors import FenceUnavailableError, TailNotKeptError
from mirrorflow_replicator.switchover.flow_end import EndedFlow
from mirrorflow_replicator.switchover.quiescence import (
    UndecidedTransaction,
    open_transactions,
    read_ends,
)
from mirrorflow_replicator.switchover.tail_reader import count_tail
from mirrorflow_replicator.switchover.write_fences import WriteFence

PARTITIONS_AT_ONCE: Final = 8  # each holds a fetch of 1 MiB, and a decoded batch
# A broker obeys an ACL some hundredths of a second after it lists it.
QUIET_S: Final = 0.5
QUIET_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTail:
    """The tail of a partition and what is in it. *topic_id* is that of the topic on the old side."""

    tail: DivergedTail
    count: TailCount = field(default_factory=TailCount)
    topic_id: str = ""

    @property
    def partition(self) -> TopicPartition:
        return self.tail.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSurvey:
    """The tails of all partitions of a flow, by partition, and the transactions that are open on the old side."""

    switchover: str
    tails: tuple[CountedTail, ...]
    transactions: tuple[UndecidedTransaction, ...] = ()

    @property
    def count(self) -> TailCount:
        """What is in all tails."""
        count = TailCount()
        for tail in self.tails:
            count = count.joined(tail.count)
        return count

    @property
    def filled(self) -> tuple[CountedTail, ...]:
        """The tails that have records."""
        return tuple(tail for tail in self.tails if tail.count.records)

    @property
    def refused(self) -> tuple[CountedTail, ...]:
        """The partitions whose tails cannot be cut out."""
        return tuple(tail for tail in self.tails if tail.tail.state in REFUSED)


async def fence_returned_side(fence: WriteFence, topics: Collection[str], *, alias: str) -> None:
    """Refuses writes to *topics* of the old side, cluster *alias*. Raises as `WriteFence.set`, and FenceUnavailableError if the fence is not complete."""
    await fence.set(topics)
    if await fence.state() is not FenceState.COMPLETE:
        raise FenceUnavailableError(
            cluster=alias,
            problem="not all brokers list the fence",
            action="start the command again when all of its brokers respond",
        )


async def survey_tails(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    ended: EndedFlow,
    partitions: Collection[TopicPartition],
) -> TailSurvey:
    """Cuts out and counts the tails of *partitions*, which are those of the flow's topics on *source*, the old side.

    *settings* are those of the flow that has ended. The old side must be fenced. Raises ClusterError, CorruptBatchError, and
    TailNotKeptError if someone still writes.
    """
    is_heartbeat = make_replication_policy(settings).is_heartbeats_topic
    copied = {
        key: copied_end for key, copied_end in copied_ends(ended).items() if not is_heartbeat(key.topic)
    }
    logs, ends = await _returned_logs(settings, source, target, ended, partitions)
    tails = [cut_tail(key, copied.get(key), logs.get(key)) for key in sorted({*partitions, *copied})]
    limit = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def counted(tail: DivergedTail) -> CountedTail:
        log = logs.get(tail.partition)
        if log is None or tail.is_empty or tail.state in REFUSED:
            return CountedTail(tail=tail, topic_id="" if log is None else log.topic_id)
        # Records after the last stable offset are not decided yet.
        decided = replace(tail, end=max(tail.start, min(tail.end, log.last_stable)))
        async with limit:
            return CountedTail(tail=tail, count=await count_tail(source, decided), topic_id=log.topic_id)

    return TailSurvey(
        switchover=ended.switchover,
        tails=tuple(await asyncio.gather(*map(counted, tails))),
        transactions=await open_transactions(source, ends),
    )


def copied_ends(ended: EndedFlow) -> dict[TopicPartition, CopiedEnd]:
    """Returns where the flow ended, by the partition of the old side."""
    exact = {
        key: CopiedEnd(next_offset=position.next_source_offset, topic_id=position.source_topic_id)
        for key, position in ended.positions.items()
    }
    inexact = CopiedEnd(next_offset=UNKNOWN, is_exact=False)
    return dict.fromkeys((*ended.stopped, *ended.unfenced), inexact) | exact


def reverse_starts(ended: EndedFlow, survey: TailSurvey) -> dict[TopicPartition, int]:
    """Returns where the flow back starts, by the partition of the new side: where the forward flow has ended.

    A partition that the old side has no longer, or again, is absent: the flow back copies it from its earliest record.
    Raises TailNotKeptError if it is not known where the forward flow has ended.
    """
    undecided = [str(tail.partition) for tail in survey.tails if tail.tail.state is TailState.UNDECIDED]
    if undecided:
        raise TailNotKeptError(
            problem=f"It is not known where the flow has ended in {', '.join(undecided[:3])}, so the flow back would copy all of it",
            action="exclude the topic from both flows, or delete it on the old side",
        )
    restarted = {TailState.MISSING, TailState.RECREATED}
    absent = {ended.copies.get(tail.partition) for tail in survey.tails if tail.tail.state in restarted}
    return {key: offset for key, offset in ended.target_ends.items() if key not in absent}


def require_decided(survey: TailSurvey) -> None:
    """Raises TailNotKeptError if a transaction is open in a tail: its records may become part of it, or not."""
    opened = [tail for tail in survey.tails if tail.tail.is_open and not tail.tail.is_empty]
    if not opened:
        return
    named = [str(transaction) for transaction in survey.transactions] or [
        f"a transaction that is open in {tail.partition}" for tail in opened
    ]
    raise TailNotKeptError(
        problem=f"It is not decided yet what belongs to the tail: there is {', and '.join(named)}",
        action=(
            "wait until brokers have ended it (transaction.timeout.ms), and start the command again. If it stays open, and "
            "kafka-transactions.sh describe shows CompleteAbort, its marker is lost (KAFKA-20734): abort it with "
            "kafka-transactions.sh abort --topic TOPIC --partition NUMBER --start-offset OFFSET"
        ),
    )


async def _returned_logs(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    ended: EndedFlow,
    partitions: Collection[TopicPartition],
) -> tuple[dict[TopicPartition, ReturnedLog], Mapping[TopicPartition, PartitionEnd]]:
    ends = await _quiet_ends(source, partitions)
    starts = await admin.offsets_at(source, partitions, EARLIEST)
    same = await _same_until(settings, source, target, ended, partitions)
    logs = {
        key: ReturnedLog(
            topic_id=state.topic_id,
            start=starts[key],
            end=state.end,
            last_stable=state.last_stable,
            same_until=same.get(key),
        )
        for key, state in ends.items()
    }
    return logs, ends


async def _quiet_ends(
    source: Cluster, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, PartitionEnd]:
    """Returns the ends of *partitions* once they do not change any more. Raises TailNotKeptError, ClusterError."""
    now = asyncio.get_running_loop().time
    until_s, ends = now() + QUIET_TIMEOUT_S, await read_ends(source, partitions)
    while True:
        await asyncio.sleep(QUIET_S)
        before, ends = ends, await read_ends(source, partitions)
        growing = [str(key) for key, state in ends.items() if state.end != before[key].end]
        if not growing:
            return ends
        if now() >= until_s:
            raise TailNotKeptError(
                problem=f"Someone writes to {', '.join(growing[:3])} of {source.alias} although it is fenced (a super user?)",
                action="stop that producer, and start the command again",
            )


async def _same_until(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    ended: EndedFlow,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, int]:
    """Returns up to where the old side has what was copied, as its leader epochs show; partitions without known epochs are absent."""
    known = {
        key: ended.positions[key]
        for key in partitions
        if key in ended.positions and ended.positions[key].source_epoch != UNKNOWN
    }
    clusters = FlowClusters(settings, source, target, initial=set())
    epoch_ends = await clusters.runner.run(
        gather(
            {
                key: until_unavailable(end_in_source(key, position.source_epoch, position.epochs))
                for key, position in known.items()
            }
        )
    )
    for result in epoch_ends.values():
        if isinstance(result, Unavailable):
            raise result.error
    return {
        key: result[0].end
        for key, result in epoch_ends.items()
        if not isinstance(result, Unavailable) and result[0].end != UNKNOWN
    }
