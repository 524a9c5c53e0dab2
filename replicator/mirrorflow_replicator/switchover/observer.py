"""Observes the clusters for the switchover's state machine: only what the present state needs, in the order that it prescribes."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    LastWrite,
    PartitionEnd,
    SwitchoverObservation,
    TailDigests,
)
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.seal import Seal
from mirrorflow_core.switchover.states import FENCED, SwitchoverState
from mirrorflow_replicator.switchover.errors import SwitchoverError
from mirrorflow_replicator.switchover.flow_mover import FlowMover
from mirrorflow_replicator.switchover.journal import SwitchoverJournal
from mirrorflow_replicator.switchover.pair_settings import PairClusters, SwitchoverSettings
from mirrorflow_replicator.switchover.quiescence import last_writes, read_ends
from mirrorflow_replicator.switchover.readiness import ReadinessChecks
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions
from mirrorflow_replicator.switchover.write_fences import WriteFence

_S = SwitchoverState
T = TypeVar("T")
_UNFENCED: Final = frozenset({_S.ACCEPTED, _S.CHECKING})
_WITH_ENDPOINT: Final = frozenset({_S.ACCEPTED, _S.PROMOTING})
_WITH_FLOW_END: Final = frozenset({_S.FENCING, _S.FORWARD_ENDED, _S.ROLLING_BACK})
# In FENCING, because the time for which the ends are unchanged begins there.
_WITH_SOURCE_ENDS: Final = FENCED | {_S.PROMOTING, _S.REVERSING}
_WITH_REVERSE: Final = frozenset({_S.FENCING, _S.REVERSING, _S.ROLLING_BACK})
_WITH_COPIED: Final = frozenset({_S.QUIESCING, _S.DRAINING, _S.FORWARD_ENDED})
_WITH_VERIFICATION: Final = frozenset({_S.VERIFYING, _S.FORWARD_ENDED})
_WITH_GROUPS: Final = frozenset({_S.VERIFYING, _S.GROUPS_FINAL, _S.FORWARD_ENDED})


class SwitchoverObserver(ABC):
    """Observes one switchover. *runner* is unique for each start of a process."""

    def __init__(self, *, runner: str) -> None:
        self.problem = ""  # why something is None in the last observation
        self._runner = runner
        self._rollback_requested = False

    @property
    def is_rollback_requested(self) -> bool:
        """Whether `request_rollback` was called."""
        return self._rollback_requested

    def request_rollback(self) -> None:
        """Rolls back from the next observation on, unless the switchover has promoted."""
        self._rollback_requested = True

    @abstractmethod
    async def observe(self, record: SwitchoverRecord) -> SwitchoverObservation:
        """Returns what *record*'s state needs. Raises SwitchoverError.

        What cannot be read is None, and `problem` says why: the state machine decides how long that may last.
        """

    async def _known(self, reading: Awaitable[T]) -> T | None:
        try:
            return await reading
        except SwitchoverError:
            raise
        except MirrorFlowError as error:
            self.problem = str(error)
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedParts:
    """What observes and moves both clusters of a planned switchover. `fences` are by the alias of their cluster."""

    settings: SwitchoverSettings
    clusters: PairClusters
    journal: SwitchoverJournal
    fences: Mapping[str, WriteFence]
    flows: FlowMover
    checks: ReadinessChecks
    partitions: SealedPartitions


class PlannedObserver(SwitchoverObserver):
    """Observes both clusters, for a planned switchover or a rehearsal."""

    def __init__(self, parts: PlannedParts, *, runner: str) -> None:
        super().__init__(runner=runner)
        self._parts = parts
        self._seen: object = None
        self._since_s = 0.0

    async def observe(self, record: SwitchoverRecord) -> SwitchoverObservation:
        self.problem = ""
        state, parts = record.state, self._parts
        flows, settings = parts.flows, parts.settings
        checks = await parts.checks.results() if state is _S.CHECKING else {}
        if checks and not any(checks.values()):
            await self._known(flows.prepare())
        # First, because it may wait for seconds: the rest would be as old when the state machine decides on it.
        is_held, has_reverse = state is _S.FENCING, state in _WITH_REVERSE
        reverse = await self._known(flows.reverse(is_to_be_held=is_held)) if has_reverse else None
        # Each group is read side by side, and the groups one after the other.
        on_source, on_target, flow_end, source_fence, target_fence = await asyncio.gather(
            self._known(parts.journal.records_on(settings.source)),
            self._known(parts.journal.records_on(settings.to)),
            self._known(flows.end_state() if state in _WITH_FLOW_END else _nothing()),
            self._known(_nothing() if state in _UNFENCED else parts.fences[settings.source].state()),
            self._known(parts.fences[settings.to].state() if state is _S.PROMOTING else _nothing()),
        )
        source = await self._source(record, on_source, source_fence)
        # The rest only counts when the flow has ended.
        is_running = state is _S.FORWARD_ENDED and (flow_end is None or flow_end.switchover != record.id)
        has_copied = state in _WITH_COPIED and not is_running
        has_groups = state in _WITH_GROUPS and not is_running and self._is_verified(record)
        copied, groups = await asyncio.gather(
            self._known(flows.copied(_offsets(record, source)) if has_copied else _nothing()),
            self._known(flows.groups() if has_groups else _nothing()),
        )
        has_target_ends = state is _S.FORWARD_ENDED and not is_running
        target_ends = await self._known(flows.settled_copy_ends()) if has_target_ends else None
        return SwitchoverObservation(
            runner=self._runner,
            rollback_requested=self._rollback_requested,
            checks=checks,
            endpoint=(parts.journal.active or record.source) if state in _WITH_ENDPOINT else None,
            flow_end=flow_end,
            source=source,
            copied=copied,
            verification=flows.verification if state in _WITH_VERIFICATION else None,
            groups=groups,
            target=ClusterObservation(records=on_target, fence=target_fence, ends=target_ends),
            reverse=reverse,
        )

    def _is_verified(self, record: SwitchoverRecord) -> bool:
        """Returns whether the state VERIFYING, if that is the present one, is over, so that groups count."""
        if record.state is not _S.VERIFYING:
            return True
        verification, seal = self._parts.flows.verification, record.seal
        return verification is not None and seal is not None and verification.seal_sha256 == seal.sha256

    async def _source(
        self, record: SwitchoverRecord, records: tuple[SwitchoverRecord, ...] | None, fence: FenceState | None
    ) -> ClusterObservation:
        state, own_fence = record.state, self._parts.fences[self._parts.settings.source]
        if state is _S.FENCING and fence is FenceState.COMPLETE and not own_fence.is_set:
            fence = FenceState.PARTIAL  # each process sets it again: it may have been lifted meanwhile
        ends = await self._known(self._source_ends()) if state in _WITH_SOURCE_ENDS else None
        # Once promoted, applications are led away in any case.
        unfenced: frozenset[str] | None = frozenset()
        if ends is not None and fence is FenceState.COMPLETE and state in FENCED:
            unfenced = await self._known(own_fence.uncovered({partition.topic for partition in ends}))
            fence = None if unfenced is None else FenceState.PARTIAL if unfenced else fence
        if ends is None or fence is None:
            self._seen = None
            return ClusterObservation(records=records, fence=fence, ends=ends)
        unchanged_ms = self._unchanged_ms(fence, ends)
        # Ends that still move would be read for nothing. It is done while the ends are watched, which takes longer.
        has_tails = state is _S.QUIESCING and unchanged_ms > 0
        return ClusterObservation(
            records=records,
            fence=fence,
            ends=ends,
            unchanged_ms=unchanged_ms,
            tails=await self._known(self._tails(ends)) if has_tails else None,
            unfenced_topics=tuple(sorted(unfenced or ())),
            last_writes=(await self._known(self._writers(record.seal, ends)) or ()) if record.seal else (),
        )

    async def _tails(self, ends: Mapping[TopicPartition, PartitionEnd]) -> TailDigests:
        parts = self._parts
        return await parts.flows.tails(ends, parts.journal.starts_on(parts.settings.source))

    async def _source_ends(self) -> dict[TopicPartition, PartitionEnd]:
        return await read_ends(self._parts.clusters.source, await self._parts.partitions.on_source())

    async def _writers(
        self, seal: Seal, ends: Mapping[TopicPartition, PartitionEnd]
    ) -> tuple[LastWrite, ...]:
        """Returns who has written since *seal*, so that a rollback can name them."""
        grown = [partition for partition, end in ends.items() if seal.ends.get(partition) != end.end]
        return await last_writes(self._parts.clusters.source, grown) if grown else ()

    def _unchanged_ms(self, fence: FenceState, ends: Mapping[TopicPartition, PartitionEnd]) -> int:
        now_s, seen = asyncio.get_running_loop().time(), (fence, ends)
        if seen != self._seen or fence is not FenceState.COMPLETE:
            self._seen, self._since_s = seen, now_s
        return int((now_s - self._since_s) * 1000)


async def _nothing() -> None:
    """Is read where the present state needs nothing."""


def _offsets(record: SwitchoverRecord, source: ClusterObservation) -> Mapping[TopicPartition, int] | None:
    """Returns the offsets up to which the copy counts: the seal, or before it the ends that were just read; None: unknown."""
    if record.seal is not None:
        return record.seal.ends
    return None if source.ends is None else {key: end.end for key, end in source.ends.items()}
