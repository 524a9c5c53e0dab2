"""Observes and moves the two flows of a pair, as the switchover's state machine asks.

The parts are those of `flow_end`, `drain`, `range_verification`, `final_groups` and `reverse_start`.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover.observation import (
    FlowEnd,
    GroupPass,
    PartitionEnd,
    ReverseFlow,
    SealVerification,
    TailDigest,
    TailDigests,
)
from mirrorflow_core.switchover.record import ReverseStart
from mirrorflow_core.switchover.seal import Seal
from mirrorflow_core.writer.claim import ABANDONED_MS, Claim, ended_by, is_end_pending
from mirrorflow_core.writer.stored_positions import read_positions
from mirrorflow_core.writer.transaction_log import DecidedRecords
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin.transaction_log_reader import LogCache
from mirrorflow_kafka.admin.transactions import TRANSACTION_COORDINATOR
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.claim_reader import read_decided_claims
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.copy.task_parts import flow_topics
from mirrorflow_replicator.switchover.drain import copied_offsets
from mirrorflow_replicator.switchover.final_groups import FinalGroup, summarised
from mirrorflow_replicator.switchover.flow_end import NO_BARRIER, clear_end, end_flow, give_up, open_ending
from mirrorflow_replicator.switchover.group_pass import FinalGroupPass, ImmovableGroups
from mirrorflow_replicator.switchover.pair_settings import PairClusters, SwitchoverSettings
from mirrorflow_replicator.switchover.quiescence import read_ends, settled_ends
from mirrorflow_replicator.switchover.range_verification import (
    Comparison,
    SourceTails,
    compare_newest,
    new_digest_key,
    read_source_tails,
)
from mirrorflow_replicator.switchover.reverse_start import hold_reverse, require_no_conflict, start_reverse
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions

ABANDONED_POLL_S: Final = 1.0


class _Comparison(NamedTuple):
    """What was compared: both sides up to *ends* of the source, when the copies ended at *copy_ends*."""

    ends: Mapping[TopicPartition, PartitionEnd]
    copy_ends: Mapping[TopicPartition, PartitionEnd]
    partitions: Mapping[TopicPartition, Comparison]
    sealed: Mapping[TopicPartition, TailDigest]


class FlowMover:
    """The flows of one switchover. `verification` is the newest comparison."""

    def __init__(
        self, settings: SwitchoverSettings, clusters: PairClusters, partitions: SealedPartitions
    ) -> None:
        self.verification: SealVerification | None = None
        self._ahead: _Comparison | None = None
        self._digest_key = new_digest_key()
        self._sent: tuple[Mapping[TopicPartition, PartitionEnd], SourceTails] | None = None
        self._ending: FlowClusters | None = None
        self._logs = LogCache()  # of the forward flow
        self._abandoned: Claim | None = None  # of the flow back, whose process was killed
        self._is_back_watched = False  # whether it is known if the process of the flow back was killed
        self._settings = settings
        self._clusters = clusters
        self._partitions = partitions
        groups = settings.forward_groups
        self._groups = None if groups is None else FinalGroupPass(groups, clusters)

    async def why_not_ready(self) -> str:
        """Returns why the two flows do not allow a switchover; "" if they do. Raises MirrorFlowError."""
        settings = self._settings
        claim = await newest_claim(self._clusters.target, settings.forward)
        if claim is None or claim.left:
            return (
                f"spec.members.{settings.source}.flow: flow {settings.forward.flow} does not run, so {settings.source} is not the active "
                "member, or nothing copies it; start the flow (mirrorflow run), or name the other member in --to."
            )
        if why := await self._why_back_runs():
            return f"spec.members.{settings.to}.flow: flow {settings.back.flow} {why}"
        starts = {partition: end.end for partition, end in (await self.copy_ends()).items()}
        await require_no_conflict(settings.back, self._clusters.target, self._clusters.source, starts)
        return ""

    async def _why_back_runs(self) -> str:
        """Returns why the flow back cannot be held; "" if it can. Raises ClusterError."""
        back = await newest_claim(self._clusters.source, self._settings.back)
        is_owned = back is not None and back.running_process is not None and back.ended is None
        why = await self._why_in_use(back) if back is not None and is_owned else ""
        self._is_back_watched = True
        return why

    async def _why_in_use(self, claim: Claim) -> str:
        """Returns why the flow back, whose owner has not left, cannot be held; "" if that never stored anything and is gone. Raises ClusterError.

        A process that was killed leaves its claim, however long ago that was. It no longer renews it: that takes as long as a newcomer waits.
        """
        now = asyncio.get_running_loop().time
        until_s = now() + ABANDONED_MS / 1000
        while now() < until_s:
            await asyncio.sleep(ABANDONED_POLL_S)
            if await newest_claim(self._clusters.source, self._settings.back) != claim:
                return f"runs ({claim.running_process}), and would copy records back; stop it."
        if await self._may_have_copied():
            return (
                f"was killed ({claim.running_process}), and may have copied records; if {self._settings.source} needs no more of them, reset the "
                "stored offsets of that flow, and repeat the switchover."
            )
        self._abandoned = claim
        return ""

    async def _may_have_copied(self) -> bool:
        """Returns whether the flow back has a position that its process has not left: it may have copied more. Raises ClusterError."""
        source = self._clusters.source
        flow = FlowClusters(self._settings.back, source, source, initial=set())
        stored = (await flow.runner.run(read_positions(NO_BARRIER))).committed
        newest = {position.topic_partition: position for position in stored}
        return any(position.next_source_offset >= 0 and not position.left for position in newest.values())

    async def prepare(self) -> None:
        """Does what can be done before writes are refused, and changes nothing: topics, coordinators and groups are found, logs read.

        What is left unprepared by an error takes its time later. Raises MirrorFlowError.
        """
        if self._ending is not None:
            return
        target = self._clusters.target
        opened = await open_ending(self._settings.forward, target, logs=self._logs)
        claim = await newest_claim(target, self._settings.forward, self._logs)
        if claim is not None:
            names = TransactionalIds(claim.source_alias).lock, *claim.writer_ids
            await asyncio.gather(*(target.coordinator((TRANSACTION_COORDINATOR, name)) for name in names))
        await self.copied(None)
        await self.groups()
        self._ending = opened

    async def copied(self, ends: Mapping[TopicPartition, int] | None) -> Mapping[TopicPartition, int]:
        """Returns the next source offset to copy of each partition, up to *ends* or to the present end. Raises ClusterError."""
        if ends is None:
            known = await read_ends(self._clusters.source, await self._partitions.on_source())
            ends = {partition: end.end for partition, end in known.items()}
        source, target = self._clusters.source, self._clusters.target
        return await copied_offsets(self._settings.forward, source, target, ends, logs=self._logs)

    async def end_state(self) -> FlowEnd | None:
        """As `observed_end`, of the forward flow."""
        return await observed_end(self._clusters.target, self._settings.forward, self._logs)

    async def end(self, switchover: str) -> None:
        """Ends the forward flow. Raises MirrorFlowError, also of a partition that cannot be fenced now: the caller tries again."""
        # One that has failed opens the flow's topics again: they may have been deleted.
        opened, self._ending = self._ending, None
        forward, target = self._settings.forward, self._clusters.target
        await end_flow(forward, target, switchover, on_waiting=give_up, opened=opened)

    async def clear_end(self, switchover: str) -> None:
        """Lets the forward flow run again, if *switchover* has ended it. Raises MirrorFlowError."""
        await clear_end(self._settings.forward, self._clusters.target, switchover)

    async def verify(self, seal: Seal, starts: Iterable[ReverseStart] = ()) -> None:
        """Compares both sides up to *seal*; `verification` is the result. Raises ClusterError.

        *starts*: where earlier switchovers to the source have started the flow.
        """
        self._digest_key = seal.digest_key  # that of this process, unless another one has sealed
        ahead, self._ahead = self._ahead, None
        ends, sealed = _sealed_ends(seal), _sealed_digests(seal)
        # A log that still ends where it did has the same records.
        is_known = ahead is not None and (ahead.ends, ahead.sealed) == (ends, sealed)
        if ahead is None or not is_known or ahead.copy_ends != await self.copy_ends():
            ahead = await self._compared(ends, sealed, starts)
        results = ahead.partitions.values()
        self.verification = SealVerification(
            seal_sha256=seal.sha256,
            differences=tuple(result.difference for result in results if result.difference),
            digests_equal=sum(result.has_sealed_digest for result in results),
        )

    async def tails(
        self, ends: Mapping[TopicPartition, PartitionEnd], starts: Iterable[ReverseStart] = ()
    ) -> TailDigests:
        """Returns digests of the newest records before *ends* of the source. Raises ClusterError. *starts*: as in `verify`."""
        return (await self._source_tails(ends, starts)).digests()

    async def verify_ahead(
        self, ends: Mapping[TopicPartition, PartitionEnd], starts: Iterable[ReverseStart] = ()
    ) -> None:
        """Compares both sides up to *ends*, which are copied and will probably be sealed, for the next `verify`. Raises ClusterError."""
        if self._ahead is None or self._ahead.ends != ends:
            self._ahead = await self._compared(ends, (await self.tails(ends, starts)).partitions, starts)

    async def _compared(
        self,
        ends: Mapping[TopicPartition, PartitionEnd],
        sealed: Mapping[TopicPartition, TailDigest],
        starts: Iterable[ReverseStart],
    ) -> _Comparison:
        copy_ends, sent = await self.copy_ends(), await self._source_tails(ends, starts)
        forward, target = self._settings.forward, self._clusters.target
        compared = await compare_newest(forward, target, sent, sealed=sealed)
        return _Comparison(dict(ends), copy_ends, compared, dict(sealed))

    async def _source_tails(
        self, ends: Mapping[TopicPartition, PartitionEnd], starts: Iterable[ReverseStart]
    ) -> SourceTails:
        """Returns the newest records before *ends*, which are read once: below the end, a log does not change."""
        if self._sent is not None and (self._sent[0], self._sent[1].key) == (ends, self._digest_key):
            return self._sent[1]
        offsets = {partition: end.end for partition, end in ends.items()}
        since: dict[TopicPartition, int] = {}
        for start in starts:
            key = start.topic_partition
            if key in ends and ends[key].topic_id == start.topic_id:
                since[key] = max(since.get(key, 0), start.offset)
        forward, clusters = self._settings.forward, self._clusters
        sent = await read_source_tails(
            forward, clusters.source, clusters.target, offsets, key=self._digest_key, starts=since
        )
        self._sent = dict(ends), sent
        return sent

    async def copy_ends(self) -> dict[TopicPartition, PartitionEnd]:
        """Returns the ends of all copies. Raises ClusterError."""
        return await read_ends(self._clusters.target, (await self._partitions.copies()).values())

    async def settled_copy_ends(self) -> dict[TopicPartition, PartitionEnd]:
        """Returns the ends of all copies, which the flow back starts at. Raises ClusterError while one of them may change.

        Those whose topic was deleted on the source are among them: the flow back would copy them whole.
        """
        target = self._clusters.target
        flow = FlowClusters(self._settings.forward, target, target, initial=set(), logs=self._logs)
        stored = (await flow.runner.run(read_positions(NO_BARRIER))).committed
        newest = {position.topic_partition: position for position in stored}
        remaining = await self._partitions.remaining_copies(newest.values())
        return await settled_ends(target, [*(await self._partitions.copies()).values(), *remaining])

    async def groups(self) -> GroupPass:
        """Returns the groups that are not ready for the target. Raises ClusterError."""
        return GroupPass() if self._groups is None else await self._groups.observe()

    async def group_names(self) -> tuple[str, ...]:
        """Returns the groups that are moved. Raises ClusterError."""
        if self._groups is None:
            return ()
        await self._groups.immovable()
        return tuple(dict.fromkeys(offset.group for offset in self._groups.offsets()))

    async def writer_ids(self) -> tuple[str, ...]:
        """Returns the transactional ids of the forward flow's tasks, which its end takes over. Raises ClusterError."""
        claim = await newest_claim(self._clusters.target, self._settings.forward, self._logs)
        return () if claim is None else claim.writer_ids

    async def immovable_groups(self) -> ImmovableGroups:
        """Returns the groups whose offsets cannot be committed on the target. Raises ClusterError."""
        return ImmovableGroups() if self._groups is None else await self._groups.immovable()

    def final_groups(self) -> tuple[FinalGroup, ...]:
        """Returns where each group stands as of the last pass."""
        return () if self._groups is None else summarised(self._groups.offsets())

    async def finish_groups(self) -> None:
        """Commits the offsets of all groups at the target. Raises ClusterError."""
        if self._groups is not None:
            await self._groups.finish()

    async def hold_reverse(self, switchover: str) -> None:
        """Keeps the flow back from copying until `start_reverse`. Raises MirrorFlowError, also if it runs or has copied."""
        starts = {partition: end.end for partition, end in (await self.copy_ends()).items()}
        await hold_reverse(
            self._settings.back,
            self._clusters.target,
            self._clusters.source,
            switchover,
            starts,
            abandoned=self._abandoned,
        )

    async def release_reverse(self, switchover: str) -> None:
        """Lets the flow back run as before, if *switchover* holds it. Raises MirrorFlowError."""
        await clear_end(self._settings.back, self._clusters.source, switchover)

    async def start_reverse(self, switchover: str, starts: tuple[ReverseStart, ...]) -> None:
        """Lets the flow back run from *starts*. Raises MirrorFlowError."""
        offsets = {start.topic_partition: start.offset for start in starts}
        await start_reverse(
            self._settings.back, self._clusters.target, self._clusters.source, switchover, offsets
        )

    async def reverse(self, *, is_to_be_held: bool = False) -> ReverseFlow | None:
        """As `observed_reverse`.

        *is_to_be_held*: a process that resumes the switchover does not know what was found in CHECKING, and watches the flow as then.
        """
        if is_to_be_held and not self._is_back_watched:
            await self._why_back_runs()
        return await observed_reverse(self._clusters.source, self._settings.back, abandoned=self._abandoned)


def _sealed_ends(seal: Seal) -> dict[TopicPartition, PartitionEnd]:
    return {
        sealed.topic_partition: PartitionEnd(
            topic_id=sealed.topic_id, end=sealed.end, last_stable=sealed.last_stable
        )
        for sealed in seal.partitions
    }


def _sealed_digests(seal: Seal) -> dict[TopicPartition, TailDigest]:
    return {
        sealed.topic_partition: TailDigest(records=sealed.records, digest=sealed.digest)
        for sealed in seal.partitions
    }


async def observed_end(
    target: Cluster, forward: SourceSettings, logs: LogCache | None = None
) -> FlowEnd | None:
    """Returns whether flow *forward* has ended; None while a claim that changes this is pending: then it is unknown. Raises ClusterError."""
    claims = await decided_claims(target, forward, logs)
    return None if is_end_pending(claims) else FlowEnd(switchover=ended_by(claims) or "")


async def observed_reverse(
    source: Cluster, back: SourceSettings, *, abandoned: Claim | None = None
) -> ReverseFlow | None:
    """Returns whether flow *back*, which writes to *source*, was held or started, and a process of it runs; None as `observed_end`.

    The owner of the claim *abandoned* does not run. Raises ClusterError.
    """
    claims = await decided_claims(source, back)
    if is_end_pending(claims):
        return None
    claim = claims.committed[-1] if claims.committed else None
    if claim is None:
        return ReverseFlow(started_by="")
    is_copying = claim.running_process is not None and claim != abandoned
    return ReverseFlow(started_by=claim.started or "", is_copying=is_copying, held_by=claim.ended or "")


async def newest_claim(
    target: Cluster, settings: SourceSettings, logs: LogCache | None = None
) -> Claim | None:
    """Returns the claim of the flow's last owner; None if it was never owned. *logs* shortens repeated calls. Raises ClusterError."""
    committed = (await decided_claims(target, settings, logs)).committed
    return committed[-1] if committed else None


async def decided_claims(
    target: Cluster, settings: SourceSettings, logs: LogCache | None = None
) -> DecidedRecords[Claim]:
    """As `newest_claim`, with all claims, and those in open transactions."""
    return await read_decided_claims(target, flow_topics(settings), logs)
