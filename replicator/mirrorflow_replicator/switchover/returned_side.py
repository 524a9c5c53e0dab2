"""Opens the side that applications have left unplanned, when it has returned: fences it before anything is read from it.

Order matters: an application that was never led over may still write there, and what it writes belongs to the tail.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.errors import StartConflictError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.diverged_tail import TailChoice
from mirrorflow_core.switchover.record import ReverseStart, SwitchoverRecord
from mirrorflow_core.switchover.states import PROMOTED, SwitchoverState, SwitchoverType
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.task_parts import flow_topics
from mirrorflow_replicator.switchover.diverged_tail import (
    TailSurvey,
    fence_returned_side,
    reverse_starts,
    survey_tails,
)
from mirrorflow_replicator.switchover.errors import TailNotKeptError
from mirrorflow_replicator.switchover.flow_end import EndedFlow, ended_by, ended_flow
from mirrorflow_replicator.switchover.flow_mover import newest_claim
from mirrorflow_replicator.switchover.journal import SwitchoverJournal
from mirrorflow_replicator.switchover.pair_settings import PairClusters, SwitchoverSettings, pair_clusters
from mirrorflow_replicator.switchover.reverse_start import hold_reverse, start_reverse
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions
from mirrorflow_replicator.switchover.session import (
    fence_of_cluster,
    journal_of,
    require_same_method,
    wait_until_free,
)
from mirrorflow_replicator.switchover.tail_keeping import (
    WrittenTail,
    append_tails,
    keep_tails,
    require_written,
)
from mirrorflow_replicator.switchover.write_fences import WriteFence

# The options of the command that continues a switchover of this type.
_OPTIONS: Final[Mapping[SwitchoverType, str]] = {
    SwitchoverType.REHEARSAL: " --rehearse",
    SwitchoverType.RESTORE: " --restore",
    SwitchoverType.UNPLANNED: " --unplanned --accept-loss",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedSide:
    """The old side of a pair, fenced, and the flow that has ended: *settings* are those of the switchover from it."""

    settings: SwitchoverSettings
    clusters: PairClusters
    ended: EndedFlow
    journal: SwitchoverJournal

    @property
    def old_side(self) -> Cluster:
        """The cluster that was left."""
        return self.clusters.source

    async def survey(self) -> TailSurvey:
        """Cuts out and counts the tails. Raises as `survey_tails`."""
        partitions = await SealedPartitions(self.settings, self.clusters).on_source()
        return await survey_tails(
            self.settings.forward, self.clusters.source, self.clusters.target, self.ended, partitions
        )

    async def keep(self, survey: TailSurvey) -> tuple[WrittenTail, ...]:
        """Writes the tails to topics of their own. Raises as `keep_tails`."""
        clusters = self.clusters
        return await keep_tails(self.settings.forward, clusters.source, clusters.target, survey)

    async def append(self, survey: TailSurvey) -> tuple[WrittenTail, ...]:
        """Appends the tails to the topics that applications use. Raises as `append_tails`."""
        clusters = self.clusters
        return await append_tails(self.settings.forward, clusters.source, clusters.target, survey)

    async def require_written(self, survey: TailSurvey, *choices: TailChoice) -> None:
        """Raises TailNotKeptError unless the tails are written by one of *choices*. Raises ClusterError."""
        await require_written(self.settings.forward, self.clusters.target, survey, choices)

    async def start_back(self, survey: TailSurvey) -> None:
        """Lets the flow back run: it copies what was written on the new side since. Raises as `start_reverse`."""
        clusters, starts = self.clusters, reverse_starts(self.ended, survey)
        # Before the flow runs: a switchover back compares nothing before its start, where the tail is.
        await self.journal.write_starts(self.settings.to, self._noted_starts(survey, starts))
        await start_reverse(
            self.settings.back, clusters.target, clusters.source, self.ended.switchover, starts
        )
        await end_degraded(self.journal, _fence_of_new_side(self.settings, clusters, self.journal))

    def _noted_starts(
        self, survey: TailSurvey, starts: Mapping[TopicPartition, int]
    ) -> Iterator[ReverseStart]:
        on_target, metadata = flow_topics(self.settings.forward).on_target, self.clusters.target.metadata
        for tail in survey.tails:
            copy = on_target(tail.partition)
            yield ReverseStart(
                topic=copy.topic,
                partition=copy.partition,
                topic_id=metadata.topic_id(copy.topic),
                offset=starts.get(copy, 0),
            )


@contextlib.asynccontextmanager
async def returned_side(settings: SwitchoverSettings) -> AsyncIterator[ReturnedSide]:
    """Connects to both clusters, fences the old side, and holds the flow back. *settings*: of the switchover by which applications have left it.

    Raises TailNotKeptError if the flow from it has not ended, or the flow back copies to it already; FenceUnavailableError,
    SwitchoverHeldError, SettingError, ClusterError.
    """
    async with pair_clusters(settings) as clusters:
        switchover = await ended_by(settings.forward, clusters.target)
        if not switchover:
            raise TailNotKeptError(
                problem=f"No switchover has ended flow {settings.forward.flow}, so {settings.source} has no tail yet",
                action=f"move applications first: mirrorflow switchover --to {settings.to}",
            )
        journal = journal_of(settings, clusters.source, clusters.target)
        await wait_until_free(journal)
        await journal.take()
        require_same_method(settings, journal)
        require_none_under_way(journal.newest)
        await _require_no_copies(settings, clusters, journal, switchover)
        topics = await SealedPartitions(settings, clusters).topics()
        fence = fence_of_cluster(settings, clusters.source, journal)
        await fence_returned_side(fence, topics, alias=settings.source)
        ended = await ended_flow(settings.forward, clusters.target, switchover)
        # It could not be held while the old side was away. `start_back` starts it, and refuses it if it has run on its own.
        with contextlib.suppress(StartConflictError):
            await hold_reverse(settings.back, clusters.target, clusters.source, switchover, ended.target_ends)
        yield ReturnedSide(settings=settings, clusters=clusters, ended=ended, journal=journal)


def require_none_under_way(newest: SwitchoverRecord | None) -> None:
    """Raises TailNotKeptError if the pair's *newest* switchover is not at rest: the old side may still get its applications back."""
    if newest is None or newest.is_at_rest:
        return
    option = _OPTIONS.get(newest.type, "")
    complete = f"complete it with `mirrorflow switchover{option} --to {newest.to}`"
    undo = "undo it with `mirrorflow switchover rollback`"
    action = f"{complete}, or {undo}"
    if newest.state in PROMOTED:
        action = complete
    elif newest.state is SwitchoverState.ROLLING_BACK:
        action = undo
    raise TailNotKeptError(
        problem=f"Switchover {newest.id} is in state {newest.state.value}, so applications have not left {newest.source} for good",
        action=action,
    )


async def _require_no_copies(
    settings: SwitchoverSettings, clusters: PairClusters, journal: SwitchoverJournal, switchover: str
) -> None:
    """Raises TailNotKeptError if the reverse flow may have written after the tail. Raises ClusterError."""
    claim = await newest_claim(clusters.source, settings.back)
    if claim is None or (claim.started != switchover and (claim.left or claim.ended is not None)):
        return
    if claim.started == switchover:
        # A process was killed right after it had started the flow.
        await end_degraded(journal, _fence_of_new_side(settings, clusters, journal))
    raise TailNotKeptError(
        problem=f"Flow {settings.back.flow} copies to {settings.source} already, and its copies follow the tail there",
        action="the tail can be cut out only before that flow starts; what was kept by then is complete",
    )


async def end_degraded(journal: SwitchoverJournal, new_side: WriteFence) -> None:
    """Ends the unplanned switchover whose tail was dealt with, so that others may begin. *new_side* is the fence of its target.

    It has noted the endpoint and its fences on its target alone. The other cluster's older notes would count as much as these, if it
    had been the target of an earlier unplanned switchover. Raises SwitchoverTakenError, HookFailedError, ClusterError.
    """
    newest = journal.newest
    if newest is not None and newest.state is SwitchoverState.DEGRADED:
        await journal.write_endpoint(newest.to)
        await new_side.lift()
        await journal.write(newest.reconciled(time.time_ns() // 1_000_000))


def _fence_of_new_side(
    settings: SwitchoverSettings, clusters: PairClusters, journal: SwitchoverJournal
) -> WriteFence:
    return fence_of_cluster(settings, clusters.target, journal)
