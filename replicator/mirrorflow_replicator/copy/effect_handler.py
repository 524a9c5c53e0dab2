"""Carries out the rare effects that the partitions of a task ask for (`mirrorflow_core.copying.effects`)."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from mirrorflow_core.copying.effects import (
    Alert,
    Align,
    Count,
    Effect,
    Effects,
    EndSession,
    ReadBatchLimit,
    ReadFrom,
    ResolveLoss,
    Retry,
    Signal,
    StopPartition,
)
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.writer.stream import Span
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.batch_limits import BatchLimits
from mirrorflow_replicator.copy.broker_routes import BrokerRoutes
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter
from mirrorflow_replicator.copy.partition_dispatch import PartitionDispatch
from mirrorflow_replicator.copy.partition_resumer import STOPPED_RETRY_S, PartitionResumer
from mirrorflow_replicator.copy.position_committer import PositionCommitter
from mirrorflow_replicator.copy.replay_files import ReplayFiles
from mirrorflow_replicator.process import now_ms

log = logging.getLogger("mirrorflow.task")


class EffectHandler:
    """The services of a task for the dispatches of its partitions."""

    _resumer: PartitionResumer
    _committer: PositionCommitter

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        routes: BrokerRoutes,
        syncs: OffsetSyncWriter | None,
        errors: Counter[str],
        replays: ReplayFiles,
        on_change: Callable[[PartitionCopier], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.now_ms = now_ms()
        # Attributes for speed: each batch calls them.
        self.changed = on_change
        self.delivered = _keep_no_syncs if syncs is None else syncs.delivered
        self.buffered_bytes = 0
        self._source = source
        self._routes = routes
        self._syncs = syncs
        self._errors = errors
        self._replays = replays
        self._spawn = spawn
        self._limits = BatchLimits(target, apply=self.apply, spawn=spawn)
        self._last_logged: WeakKeyDictionary[PartitionCopier, str] = WeakKeyDictionary()

    def begin(self, committer: PositionCommitter, resumer: PartitionResumer) -> None:
        """Begins with *committer* and *resumer*, which have effects carried out themselves."""
        self._committer, self._resumer = committer, resumer

    # -- partition_dispatch.TaskServices

    def update_clock(self) -> None:
        """Updates `now_ms`. Called before anything is sent, and when a response has come."""
        self.now_ms = now_ms()

    def count_buffered(self, bytes_more: int) -> None:
        """Counts what was fetched and not yet sent, over all partitions."""
        self.buffered_bytes += bytes_more

    def sent_in_transaction(self, size_bytes: int) -> None:
        """Counts what was sent in the open transaction."""
        self._committer.sent(size_bytes)

    def carry_out(self, dispatch: PartitionDispatch, effect: Effect) -> None:
        """Carries out *effect* of the partition of *dispatch*, which is none of those that it carries out itself."""
        copier = dispatch.copier
        match effect:
            case Signal.JOIN_TRANSACTION:
                self._committer.want(copier)
            case Signal.REFRESH_LEADER:
                self._routes.stale(copier)
            case Signal.RESUME:
                self._resumer.resume(copier)
            case Signal.RESUME_LATER:
                self._resumer.resume_later(copier)
            case Signal.DRAINED:
                dispatch.drained()
                self._committer.drained(copier)
            case ReadFrom(node_id):
                self._routes.read_from(dispatch, node_id)
            case ResolveLoss():
                self._spawn(self._resolve_loss(copier, effect))
            case ReadBatchLimit(span):
                self._limits.refused(copier, span)
            case Align(pair, was_cut_off) if self._syncs is not None and copier.map_stream is not None:
                self._syncs.aligned(copier, copier.map_stream, pair, was_cut_off=was_cut_off)
            case Count(name):
                self._errors[name] += 1
            case StopPartition(error, retry):
                if self._log_once(copier, error):
                    self._replays.write(copier)
                self._retry(copier, retry)
            case Alert(error):
                self._log_once(copier, error)
            case EndSession(reason):
                self._committer.end(reason)

    # -- position_committer.CopierServices

    def apply(self, copier: PartitionCopier, effects: Effects) -> None:
        """Carries out *effects* of an event of *copier*, unless it was given up meanwhile."""
        if (dispatch := self._routes.dispatch_of(copier)) is not None:
            dispatch.apply(effects)

    def pump(self) -> None:
        """Lets every connection send what is ready."""
        self._routes.pump()

    def expects_response_by(self, copier: PartitionCopier, since_s: float) -> float:
        """Returns by when everything in flight of *copier* has reached its broker, counted from *since_s* (monotonic clock)."""
        dispatch = self._routes.dispatch_of(copier)
        return (
            since_s
            if dispatch is None or dispatch.connection is None
            else dispatch.connection.expects_response_by(since_s)
        )

    # -- errors

    def _log_once(self, copier: PartitionCopier, error: MirrorFlowError) -> bool:
        """Logs *error* unless it was the last one of *copier*; returns whether it did."""
        self._errors[error.reason] += 1
        if self._last_logged.get(copier) == str(error):
            return False
        self._last_logged[copier] = str(error)
        log.warning("%s", error)
        return True

    def _retry(self, copier: PartitionCopier, retry: Retry) -> None:
        match retry:
            case Retry.WITH_NEW_LIMIT:
                self._spawn(self._wait_for_limit(copier))
            case Retry.LATER:
                self._resumer.retry_stopped(copier)

    async def _wait_for_limit(self, copier: PartitionCopier) -> None:
        await asyncio.sleep(STOPPED_RETRY_S)
        if copier.state is not CopierState.STOPPED:
            return
        await self._limits.read_settings(copier)
        self._resumer.retry_stopped(copier, pause_s=0.0)

    async def _resolve_loss(self, copier: PartitionCopier, asked: ResolveLoss) -> None:
        """Asks where the source's log begins and ends. Raises ClusterError."""
        try:
            start = (await admin.list_offsets(self._source, [copier.source], EARLIEST))[copier.source]
            end = (await admin.list_offsets(self._source, [copier.source], LATEST))[copier.source]
        except MirrorFlowError:
            self.apply(copier, copier.loss_resolved(asked, None, None))
            raise
        is_known = not start.error and not end.error
        self.apply(
            copier,
            copier.loss_resolved(asked, start.offset if is_known else None, end.offset if is_known else None),
        )


def _keep_no_syncs(_copier: PartitionCopier, _span: Span, _base_offset: int) -> None:
    """Does nothing: this session writes no offset syncs."""
