"""Observes both clusters for the switchover's state machine: only what the present state needs, in the order that it prescribes."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.guards import some
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    LastWrite,
    PartitionEnd,
    SwitchoverObservation,
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
_WITH_SOURCE_ENDS: Final = FENCED - {_S.FENCING} | {_S.PROMOTING, _S.REVERSING}
_WITH_COPIED: Final = frozenset({_S.QUIESCING, _S.DRAINING, _S.FORWARD_ENDED})
_WITH_VERIFICATION: Final = frozenset({_S.VERIFYING, _S.FORWARD_ENDED})
_WITH_GROUPS: Final = frozenset({_S.GROUPS_FINAL, _S.FORWARD_ENDED})


class SwitchoverObserver:
    """Observes one switchover. *runner* is unique for each start of a process."""

    def __init__(
        self,
        settings: SwitchoverSettings,
        clusters: PairClusters,
        journal: SwitchoverJournal,
        *,
        fences: Mapping[str, WriteFence],
        flows: FlowMover,
        checks: ReadinessChecks,
        partitions: SealedPartitions,
        runner: str,
    ) -> None:
        """*fences*: by the alias of their cluster."""
        self.problem = ""  # why something is None in the last observation
        self._runner = runner
        self._rollback_requested = False
        self._settings = settings
        self._clusters = clusters
        self._journal = journal
        self._fences = fences
        self._flows = flows
        self._checks = checks
        self._partitions = partitions
        self._seen: object = None
        self._since_s = 0.0

    @property
    def is_rollback_requested(self) -> bool:
        """Whether `request_rollback` was called."""
        return self._rollback_requested

    def request_rollback(self) -> None:
        """Rolls back from the next observation on, unless the switchover has promoted."""
        self._rollback_requested = True

    async def observe(self, record: SwitchoverRecord) -> SwitchoverObservation:
        """Returns what *record*'s state needs. Raises SwitchoverError.

        What cannot be read is None, and `problem` says why: the state machine decides how long that may last.
        """
        self.problem = ""
        state, flows, settings = record.state, self._flows, self._settings
        return SwitchoverObservation(
            runner=self._runner,
            rollback_requested=self._rollback_requested,
            checks=await self._checks.results() if state is _S.CHECKING else {},
            endpoint=(self._journal.active or record.source) if state in _WITH_ENDPOINT else None,
            flow_end=await self._known(flows.end_state()) if state in _WITH_FLOW_END else None,
            source=await self._source(record),
            copied=await self._known(flows.copied(record.seal)) if state in _WITH_COPIED else None,
            verification=flows.verification if state in _WITH_VERIFICATION else None,
            groups=await self._known(flows.groups()) if state in _WITH_GROUPS else None,
            target=ClusterObservation(
                records=await self._known(self._journal.records_on(settings.to)),
                fence=await self._known(self._fences[settings.to].state()) if state is _S.PROMOTING else None,
                ends=await self._known(self._target_ends()) if state is _S.FORWARD_ENDED else None,
            ),
            reverse=await self._known(flows.reverse()) if state is _S.REVERSING else None,
        )

    async def _known(self, reading: Awaitable[T]) -> T | None:
        try:
            return await reading
        except SwitchoverError:
            raise
        except MirrorFlowError as error:
            self.problem = str(error)
            return None

    async def _target_ends(self) -> dict[TopicPartition, PartitionEnd] | None:
        """Returns where the copies end; None while one of them may still become shorter or longer: the flow back starts there."""
        ends = await read_ends(self._clusters.target, (await self._partitions.copies()).values())
        open_copies = [partition for partition, end in ends.items() if end.last_stable < end.end]
        if open_copies:
            self.problem = f"{some(open_copies)} on {self._settings.to}: a transaction is open, or not all replicas are in sync"
        return None if open_copies else ends

    async def _source(self, record: SwitchoverRecord) -> ClusterObservation:
        state, source = record.state, self._settings.source
        records = await self._known(self._journal.records_on(source))
        if state in _UNFENCED:
            return ClusterObservation(records=records)
        fence = await self._known(self._fences[source].state())
        if state is _S.FENCING and fence is FenceState.COMPLETE and not self._fences[source].is_set:
            fence = FenceState.PARTIAL  # each process sets it again: it may have been lifted meanwhile
        ends = await self._known(self._source_ends()) if state in _WITH_SOURCE_ENDS else None
        # Once promoted, applications are led away in any case.
        if ends is not None and fence is FenceState.COMPLETE and state in FENCED:
            covers = await self._known(self._fences[source].covers({partition.topic for partition in ends}))
            fence = fence if covers else None if covers is None else FenceState.PARTIAL
        if ends is None or fence is None:
            self._seen = None
            return ClusterObservation(records=records, fence=fence, ends=ends)
        return ClusterObservation(
            records=records,
            fence=fence,
            ends=ends,
            unchanged_ms=self._unchanged_ms(fence, ends),
            last_writes=(await self._known(self._writers(record.seal, ends)) or ()) if record.seal else (),
        )

    async def _source_ends(self) -> dict[TopicPartition, PartitionEnd]:
        return await read_ends(self._clusters.source, await self._partitions.on_source())

    async def _writers(
        self, seal: Seal, ends: Mapping[TopicPartition, PartitionEnd]
    ) -> tuple[LastWrite, ...]:
        """Returns who has written since *seal*, so that a rollback can name them."""
        grown = [partition for partition, end in ends.items() if seal.ends.get(partition) != end.end]
        return await last_writes(self._clusters.source, grown) if grown else ()

    def _unchanged_ms(self, fence: FenceState, ends: Mapping[TopicPartition, PartitionEnd]) -> int:
        now_s, seen = asyncio.get_running_loop().time(), (fence, ends)
        if seen != self._seen or fence is not FenceState.COMPLETE:
            self._seen, self._since_s = seen, now_s
        return int((now_s - self._since_s) * 1000)
