"""Stops an unfenced copier when a newer generation of its flow is decided (docs/exactly-once.md, clause 9).

Without the ACL for the transactional id, or when the coordinator has forgotten that id, leaders continue to
accept what the old generation sends. So its copiers read the decisions every few seconds, stop their
partitions, and store offsets that are marked as left. The copiers of the newer generation wait for that
before they decide where they begin.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection

from mirrorflow_core.errors import FencedError, MirrorFlowError
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.exactly_once.succession import NOTICE_EVERY_S
from mirrorflow_kafka.stores.decision_log import DecisionLog
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier

DRAIN_S = 3.0  # for what is in flight; with NOTICE_EVERY_S, half of what the successors wait for
LOOK_S = 0.05


async def leave_when_outdated(
    log: DecisionLog,
    identity: Identity,
    *,
    source_alias: str,
    lanes: Callable[[], Collection[PartitionCopier]],
    is_fenceable: Callable[[], bool],
    flush: Callable[[Collection[PartitionCopier]], Awaitable[None]],
    on_error: Callable[[MirrorFlowError], None],
) -> None:
    """Waits until the generation of *identity* is over, then stops all *lanes* and calls *flush* for them."""
    while True:
        await asyncio.sleep(NOTICE_EVERY_S)
        if is_fenceable():
            continue
        try:
            newest = (await log.read()).identity
        except MirrorFlowError as error:
            on_error(error)
            continue
        if newest is None or newest.generation == identity.generation:
            continue
        stopped = [lane for lane in lanes() if lane.state is not CopierState.STOPPED]
        for lane in stopped:
            lane.stop(FencedError(source=source_alias, epoch=identity.producer_epoch))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while not all(lane.is_drained for lane in stopped):  # noqa: ASYNC110  its last answer wakes only the lane
                    await asyncio.sleep(LOOK_S)
        try:
            await flush(stopped)
        except MirrorFlowError as error:
            on_error(error)
        return
