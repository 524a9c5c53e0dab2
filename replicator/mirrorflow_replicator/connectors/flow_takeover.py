"""Takes a flow for this process: waits for its owner, takes the lock, the ids and the claim.

`flow_owner` decides when. This module finds out what to take and whether to wait, and runs the protocol of
`mirrorflow_core.writer.ownership`.
"""

import asyncio
import contextlib
import os
import time
from dataclasses import replace

from mirrorflow_core.errors import (
    ClusterChangedError,
    ClusterError,
    FlowEndedError,
    FlowExistsError,
    FlowNotStartedError,
    NotAuthorizedError,
)
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.settings import PolicyKind, SourceSettings
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_core.wire.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.claim_view import ClaimView
from mirrorflow_core.writer.flow_lock import Fenced, read_claims
from mirrorflow_core.writer.flow_plan import FlowPlan
from mirrorflow_core.writer.flow_start import awaited_switchover, note_awaited
from mirrorflow_core.writer.ownership import (
    POLL_MS,
    FlowEnded,
    FlowExists,
    Ownership,
    take_flow,
    wait_for_turn,
)
from mirrorflow_kafka.admin.transaction_log_reader import LogCache
from mirrorflow_kafka.writer.flow_topics import FlowTopics
from mirrorflow_replicator.connectors.claim_reader import updated_view
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.flow_ownership_states import OwnedFlow
from mirrorflow_replicator.copy.task_parts import flow_topics
from mirrorflow_replicator.named_process import has_ended, local_pid, new_process_name


def refuse_changed_clusters(before: Claim, now: Claim, settings: SourceSettings) -> None:
    """Raises ClusterChangedError if the flow was last owned between other clusters."""
    for alias, expected, actual in (
        (settings.source_alias, before.source_cluster_id, now.source_cluster_id),
        (settings.target_alias, before.target_cluster_id, now.target_cluster_id),
    ):
        if expected is not None and actual is not None and expected != actual:
            raise ClusterChangedError(alias=alias, expected=expected, found=actual)


def must_wait(owner: Claim, newcomer: Claim, *, waits_for_group: bool, preempts: bool) -> bool:
    """Returns whether *newcomer* waits for *owner*, which has not left.

    It does not wait for its own group, unless *waits_for_group*, nor for its own flow if it *preempts*.
    """
    if preempts and owner.flow == newcomer.flow:
        return False
    return waits_for_group or newcomer.group is None or owner.group != newcomer.group


def _is_dead(process: str) -> bool:
    """Returns whether an owner ran on this host and has ended: its claim will not be renewed.

    If that is wrong (containers that share a host name), the other process is fenced, and nothing is harmed.
    """
    return local_pid(process) == os.getpid() or has_ended(process)


class FlowTakeover:
    """The takeovers of one flow by this process. *group* is as in `FlowOwner`."""

    def __init__(self, settings: SourceSettings, group: str | None) -> None:
        self.is_waiting = False  # another process owns the flow, or a switchover has ended it
        self.owner: Claim | None = None  # the newest claim of that process, if it was read
        self.is_first = False  # the flow had no owner before
        # The switchover that should have started the flow for the first time, and was rolled back.
        self._held_by: str | None = None
        self.unread: str | None = (
            None  # why the claims are unread that say whether the process waits on for a switchover
        )
        self._since_s: float | None = None  # monotonic
        self._opposite = ClaimView()  # of the flow in the opposite direction
        self._opposite_logs = LogCache()
        self._settings = settings
        self._group = group
        self._process = new_process_name()

    @property
    def is_stalled(self) -> bool:
        """Whether the present takeover takes long."""
        return self._since_s is not None and time.monotonic() - self._since_s >= STALLED_AFTER_S

    def stand_by(self) -> None:
        """Notes that another process owns the flow; which one is not known yet."""
        self.is_waiting, self.owner = True, None

    def plan(self, clusters: FlowClusters, *, tasks: int = 0) -> FlowPlan:
        """Returns a plan without partitions."""
        settings = self._settings
        claim = Claim(
            flow=settings.flow,
            process=self._process,
            source_alias=settings.source_alias,
            group=self._group,
            tasks=max(1, tasks),
            lock_epoch=-1,
            source_cluster_id=clusters.source.cluster_id,
            target_cluster_id=clusters.target.cluster_id,
            time_ms=0,
        )
        takes_over, loss_policy = settings.takes_over, settings.on_source_loss
        return FlowPlan(claim=claim, assignment=(), takes_over=takes_over, loss_policy=loss_policy)

    async def owned_by_group(self, clusters: FlowClusters) -> OwnedFlow | None:
        """Returns the flow as a process of the group has claimed it; None if none has. Raises MirrorFlowError."""
        newest = await newest_claim(clusters)
        self._note_owner(newest)
        ours = self._group, self._settings.flow
        if newest is None or newest.left or newest.ended is not None or (newest.group, newest.flow) != ours:
            return None
        plan = self.plan(clusters)
        lock = Producer(plan.ids.lock, newest.lock_id, newest.lock_epoch)
        return OwnedFlow(clusters, Ownership(plan=plan, lock=lock, tasks=()))

    async def take(
        self,
        clusters: FlowClusters,
        assignment: Assignment,
        *,
        is_owner: bool,
        waits_for_group: bool = False,
        preempts: bool = False,
        waits_for_end: bool = False,
        is_to_copy: bool = False,
    ) -> OwnedFlow | Fenced:
        """Takes the flow with as many tasks as *assignment* has, after its present owner. Raises MirrorFlowError.

        *is_owner*: that is this process. *waits_for_end*: waits until the end of an ended flow is cleared, instead of raising
        FlowEndedError. *is_to_copy*: the same for a switchover that has ended the flow in the opposite direction, until it has
        started this one. The other flags are as in `must_wait`.
        """
        newest = (
            await self._wait_for_switchover(clusters, waits=waits_for_end)
            if is_to_copy
            else await newest_claim(clusters)
        )
        if newest is not None and newest.released is not None:
            # Also after a restart: no user has chosen this moment to copy everything back.
            self._held_by = newest.released
        newest = ran_or_held(newest)
        if newest is None and self._held_by is not None:
            raise self._not_started(self._held_by)
        self.is_first = newest is None
        partitions = [partition for task in assignment for partition in task]
        if self.is_first:
            clusters.begin_with(partitions)
        plan = self.plan(clusters, tasks=len(assignment))
        if newest is not None:
            if newest.flow not in {self._settings.flow, *self._settings.takes_over}:
                raise self._flow_exists(newest)
            refuse_changed_clusters(newest, plan.claim, self._settings)
            is_owned = not (is_owner or newest.left or newest.process is None or _is_dead(newest.process))
            self.owner = newest
            if newest.ended is not None:
                await self._wait_for_end(clusters, plan, newest, waits=waits_for_end)
            elif is_owned and must_wait(
                newest, plan.claim, waits_for_group=waits_for_group, preempts=preempts
            ):
                await self._wait_for_turn(clusters, plan)
        while isinstance(taken := await self._take(clusters, plan, assignment), FlowEnded):
            await self._wait_for_end(clusters, plan, taken.claim, waits=waits_for_end)
        if isinstance(taken, Fenced):
            return taken
        return OwnedFlow(clusters, taken, dict(enumerate(taken.tasks)))

    async def _take(
        self, clusters: FlowClusters, plan: FlowPlan, assignment: Assignment
    ) -> Ownership | Fenced | FlowEnded:
        partitions = [partition for task in assignment for partition in task]
        if self._group is None:  # in a group each process finds where its tasks start
            topic_ids = await clusters.topic_ids(partitions)  # with fresh metadata
            unavailable = await clusters.unavailable(partitions)
            plan = replace(plan, assignment=assignment, topic_ids=topic_ids, unavailable=unavailable)
        await clusters.begin_lookup(partitions)
        self._since_s, self.is_waiting = time.monotonic(), False
        try:
            return await clusters.runner.run(take_flow(plan))
        finally:
            self._since_s = None

    def _note_owner(self, owner: Claim | None) -> None:
        """Notes the newest *owner*, and whether it is a process outside of the group; without a group every other one is."""
        self.owner = owner
        is_of_group = owner is not None and owner.group is not None and owner.group == self._group
        is_owned = owner is not None and not owner.left and not is_of_group
        self.is_waiting = is_owned or (owner is not None and owner.ended is not None)

    async def refuse_ended(self, clusters: FlowClusters) -> None:
        """Raises FlowEndedError if a switchover has ended the flow; MirrorFlowError if that is unknown.

        It is for a process whose target does not allow it to take the flow. A process that may not read claims is not refused.
        """
        topics = flow_topics(self._settings)
        await clusters.target.refresh([topics.claims.topic])
        known = clusters.target.metadata.topics.get(topics.claims.topic)
        newest = None
        if known is not None and known.error not in {UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED}:
            with contextlib.suppress(NotAuthorizedError):
                newest = await newest_claim(clusters)
        is_ended = newest is not None and newest.ended is not None
        self.owner = newest if is_ended else await self._awaiting(clusters, newest)
        self.is_waiting = self.owner is not None
        if self.owner is not None:
            raise self._flow_ended(self.owner, is_opposite=not is_ended)

    async def _wait_for_switchover(self, clusters: FlowClusters, *, waits: bool) -> Claim | None:
        """Returns the newest claim once the switchover that has ended the flow in the opposite direction has started this one.

        Raises FlowEndedError if not *waits*; FlowNotStartedError if the switchover is rolled back meanwhile, and the flow never ran.
        """
        awaited: str | None = None
        own = await newest_claim(clusters)
        awaiting = await self._awaiting(clusters, own)
        try:
            while awaiting is not None:
                if not waits:
                    raise self._flow_ended(awaiting, is_opposite=True)
                self.owner, self.is_waiting, awaited = awaiting, True, awaiting.ended
                assert awaited is not None, "`_awaiting` names the switchover as the end"
                if ran_or_held(own) is None and (own is None or own.released != awaited):
                    await clusters.runner.run(note_awaited(self.plan(clusters), awaited))
                await asyncio.sleep(POLL_MS / 1000)
                own = await newest_claim(clusters)
                try:
                    awaiting = await self._awaiting(clusters, own)
                    self.unread = self._opposite.unread
                except ClusterError as error:
                    # What was read last holds until the source can be read again; the flow's own claim says whether it was started.
                    self.unread = str(error)
                    awaiting = self._awaiting_by(clusters, own)
        finally:
            self.unread = None
        if awaited is not None and ran_or_held(own) is None:
            self._held_by, self.is_waiting = awaited, False
            raise self._not_started(awaited)
        return own

    async def _awaiting(self, clusters: FlowClusters, own: Claim | None) -> Claim | None:
        """Returns a claim that names the switchover which has to start the flow as its end; None if none has to. Raises ClusterError.

        Only where topics keep their names does a flow copy what came by the one in the opposite direction.
        """
        if self._settings.policy.kind is not PolicyKind.IDENTITY:
            return None
        self._opposite = await updated_view(
            self._opposite, clusters.source, opposite_topics(self._settings), self._opposite_logs
        )
        return self._awaiting_by(clusters, own)

    def _awaiting_by(self, clusters: FlowClusters, own: Claim | None) -> Claim | None:
        """As `_awaiting`, by what was read last of the flow in the opposite direction."""
        switchover = awaited_switchover(
            own, self._opposite.claim, target_cluster_id=clusters.target.cluster_id
        )
        if switchover is None:
            return None
        return replace(self.plan(clusters).claim, left=True, ended=switchover)

    async def _wait_for_end(
        self, clusters: FlowClusters, plan: FlowPlan, ended: Claim, *, waits: bool
    ) -> None:
        """Waits until the end of the flow is cleared; raises FlowEndedError if not *waits*.

        Raises FlowNotStartedError if a switchover has held the flow and was rolled back: this process was started too early.
        """
        if not waits:
            raise self._flow_ended(ended)
        self.owner = ended
        await self._wait_for_turn(clusters, plan)
        if await last_claim(clusters) is None and ended.ended is not None:
            self._held_by, self.is_waiting = ended.ended, False
            raise self._not_started(ended.ended)

    async def _wait_for_turn(self, clusters: FlowClusters, plan: FlowPlan) -> None:
        self._note_owner(self.owner)
        outcome = await clusters.runner.run(wait_for_turn(plan, self._note_owner))
        if isinstance(outcome, FlowExists):
            self.is_waiting = False
            raise self._flow_exists(outcome.claim)

    def _flow_ended(self, claim: Claim, *, is_opposite: bool = False) -> FlowEndedError:
        settings = self._settings
        assert claim.ended is not None, "it is called for the claim of an ended flow"
        return FlowEndedError(
            source=settings.source_alias,
            target=settings.target_alias,
            switchover=claim.ended,
            is_opposite=is_opposite,
        )

    def _not_started(self, switchover: str) -> FlowNotStartedError:
        settings = self._settings
        return FlowNotStartedError(
            source=settings.source_alias, target=settings.target_alias, switchover=switchover
        )

    def _flow_exists(self, claim: Claim) -> FlowExistsError:
        settings = self._settings
        return FlowExistsError(
            source=settings.source_alias,
            target=settings.target_alias,
            owner=claim.flow,
            claimant=settings.flow,
            process=claim.running_process,
        )


async def last_claim(clusters: FlowClusters) -> Claim | None:
    """As `newest_claim`; also None if a switchover held the flow before it ever ran, and was rolled back."""
    return ran_or_held(await newest_claim(clusters))


def ran_or_held(newest: Claim | None) -> Claim | None:
    """Returns *newest*; None if it only says that a switchover was to start the flow, which never ran."""
    return None if newest is not None and not newest.has_run and newest.ended is None else newest


def opposite_topics(settings: SourceSettings) -> FlowTopics:
    """Returns the topics of the flow in the opposite direction; its claims are on the source of this one."""
    return FlowTopics(source_alias=settings.target_alias, connector="", offsets="", target_topic=str)


async def newest_claim(clusters: FlowClusters) -> Claim | None:
    """Returns the newest committed claim of the flow; None if it was never owned. Raises MirrorFlowError."""
    claims = (await clusters.runner.run(read_claims())).committed
    return claims[-1] if claims else None
