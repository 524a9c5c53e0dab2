"""A member of a Connect group: joins, runs what it is assigned, sends heartbeats, and rejoins after changes.

    read config topic ──> join ──> (leader: assign) ──> sync ──> stop what is revoked ──> heartbeats ──┐
          ^            └─ at once where something was revoked, so that it is reassigned ─┘             │
          └── a member came or went, the leader finds other work to assign, we were removed ───────────┘

Guarantees: this node holds what the group assigned to it, and reports that at each join. What is revoked has ended
before the next rebalance, so no other node has it before. What is not revoked keeps running during the rebalance. As
leader it assigns the work of all members (`connect.group_assignment`). While the coordinator is unreachable, work
continues: it cannot be assigned to another node. If that assumption is wrong, the target refuses the second copy
(docs/exactly-once.md). A node stops everything, and rejoins with nothing, only when the coordinator answers that it is
no longer a member.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.connect.group_assignment import (
    CONFIG_MISMATCH,
    NO_URL,
    PROTOCOLS,
    GroupAssignment,
    MemberState,
    Unit,
    Units,
    decode_assignment,
    decode_state,
    encode_assignment,
    encode_state,
    rebalance,
)
from mirrorflow_core.errors import BrokerError, ClusterError, MirrorFlowError
from mirrorflow_core.settings import GroupSettings
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.stores.group_membership import (
    Joined,
    MemberLostError,
    Membership,
    MemberStanding,
    RejoinError,
)
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.worker import config_decisions

# After a failed rebalance: a coordinator that has moved is found within a second or two.
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 10.0
# Attempts whose error is not reported: the first group of a cluster waits for brokers to create its coordinator.
UNREPORTED_FAILURES = 2
REBALANCE_MAX_S = 15.0  # how long a call waits for a rebalance to finish before it is answered with 409
IDLE_MAX_S = (
    30.0  # for all nodes to end a connector's tasks: 10 s at most for a task, and two for the rebalance
)
POLL_S = 0.1
UNSYNC_S = 1.0  # after a sync whose leader had not read the config topic to its end; it reads on meanwhile

log = logging.getLogger("mirrorflow.group")


class GroupMember:
    """One node's membership of the group.

    *read* reads the config topic to its end. *follow* starts what is held, and returns when everything else has stopped.
    """

    def __init__(
        self,
        membership: Membership,
        settings: GroupSettings,
        *,
        url: str,
        configs: ConfigTopic,
        read: Callable[[], Awaitable[None]],
        follow: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._membership = membership
        self._settings = settings
        self._url = url
        self._configs = configs
        self._read = read
        self._follow = follow
        self._rejoin = asyncio.Event()
        self._assignment: GroupAssignment | None = None
        self._assigned_units: Units = frozenset()
        self._states: Mapping[str, MemberState] = {}
        self.held: Units = frozenset()
        self.generation = -1
        self.protocol = ""
        self.leads = False
        self.leader_url = ""  # "" before the first rebalance
        self.is_rebalancing = True  # a rebalance is under way; commands wait
        self.problem: MirrorFlowError | None = None

    @property
    def acts_for_leader(self) -> bool:
        """Whether this node writes what a leader writes for others: it leads, or the leader serves no HTTP."""
        return self.leads or self.leader_url == NO_URL

    @property
    def signs(self) -> bool:
        """Whether requests between the nodes are signed."""
        return PROTOCOLS.get(self.protocol, 0) >= PROTOCOLS["sessioned"]

    def rejoin_if_due(self) -> None:
        """Starts a rebalance if this node leads and the config topic has other connectors or tasks than were assigned."""
        if (
            self.leads
            and not self.is_rebalancing
            and config_decisions.units(self._configs.configs) != self._assigned_units
        ):
            self._rejoin.set()

    def owner(self, unit: Unit) -> str | None:
        """Returns the URL of the node that has *unit*, as the leader knows it; None if no node has it."""
        for state in self._states.values():
            if state.held is not None and unit in state.held.assigned:
                return state.url
        return None

    def holders(self, connector: str) -> int:
        """Returns how many nodes have tasks of *connector*, as the leader knows since the last rebalance."""
        return sum(
            any(unit.connector == connector and unit.task >= 0 for unit in state.held.assigned)
            for state in self._states.values()
            if state.held is not None
        )

    async def wait_for_leader(self) -> bool:
        """Waits until a leader is known; returns False after a timeout."""
        return await self._until(lambda: bool(self.leader_url), timeout_s=REBALANCE_MAX_S)

    async def wait_until_idle(self, connector: str) -> bool:
        """Waits until no node has tasks of *connector*, as the leader knows it; False after a timeout."""
        return await self._until(lambda: not self.holders(connector), timeout_s=IDLE_MAX_S)

    async def _until(self, is_true: Callable[[], bool], *, timeout_s: float) -> bool:
        for _ in range(round(timeout_s / POLL_S)):
            if not self.is_rebalancing and is_true():
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def run(self) -> None:
        attempts = Backoff(min_s=BACKOFF_MIN_S, max_s=BACKOFF_MAX_S)
        async for attempt in attempts:
            try:
                self.is_rebalancing = True
                await self._rebalance()
                self.problem = None
                attempts.reset()
                await self._send_heartbeats()
            except MemberLostError:
                await self._drop_assignment()
                attempts.reset()
            except RejoinError:
                attempts.reset()
            except MirrorFlowError as error:
                if attempt > UNREPORTED_FAILURES:
                    self._note_problem(error)

    async def leave(self) -> None:
        try:
            await self._membership.leave()
        except MirrorFlowError as error:
            log.warning("Leaving group %s failed: %s", self._settings.group_id, error)

    async def _rebalance(self) -> None:
        self._rejoin.clear()
        await self._read()
        state = MemberState(url=self._url, config_offset=self._configs.offset, held=self._assignment)
        metadata = {name: encode_state(state, PROTOCOLS[name]) for name in self._settings.protocols}
        joined = await self._membership.join(metadata)
        assignments = self._encoded_assignments(joined) if joined.leads else {}
        assignment = self._read_assignment(await self._membership.sync(assignments))
        self.generation, self.protocol, self.leads = joined.generation, joined.protocol, joined.leads
        self.leader_url = assignment.leader_url
        if assignment.error:
            log.warning(
                "The leader of group %s has not read the config topic to its end; rejoining",
                self._settings.group_id,
            )
            await asyncio.sleep(UNSYNC_S)
            raise RejoinError
        if assignment.config_offset > self._configs.offset:
            await self._read()
        revoked = assignment.revoked & self.held
        self.held = (self.held - revoked) | assignment.assigned
        self._assignment = replace(
            assignment, assigned=self.held, revoked=frozenset(), delay_ms=0, leader=joined.leader_id
        )
        log.info(
            "Joined generation %d of group %s: %d connectors and tasks here, %d new, %d revoked%s",
            joined.generation,
            self._settings.group_id,
            len(self.held),
            len(assignment.assigned),
            len(revoked),
            "; this node leads" if joined.leads else "",
        )
        await self._apply_assignment()
        if revoked:
            raise RejoinError
        self.is_rebalancing = False
        self.rejoin_if_due()

    def _read_assignment(self, data: bytes) -> GroupAssignment:
        try:
            return decode_assignment(data)
        except ValueError as problem:  # also where a leader assigned nothing to us, which arrives as no bytes
            raise BrokerError(
                cluster=self._settings.client.alias,
                request="SyncGroup",
                code=0,
                name=f"an assignment that cannot be read ({problem})",
                subject=self._settings.group_id,
            ) from problem

    def _encoded_assignments(self, joined: Joined) -> dict[str, bytes]:
        """Returns each member's encoded assignment, by member id."""
        states = {member: decode_state(data) for member, data in joined.members.items()}
        offset = max(state.config_offset for state in states.values())
        behind = offset > self._configs.offset
        held = {
            member: frozenset[Unit]() if state.held is None else state.held.assigned
            for member, state in states.items()
        }
        wanted = config_decisions.units(self._configs.configs)
        deltas = rebalance(held, wanted)
        if not behind:
            self._assigned_units = wanted
            self._states = {
                member: replace(
                    state,
                    held=GroupAssignment(
                        leader=joined.leader_id,
                        leader_url=self._url,
                        config_offset=offset,
                        # What is revoked is still there until the next rebalance.
                        assigned=held[member] | deltas[member].assigned,
                    ),
                )
                for member, state in states.items()
            }
        version = PROTOCOLS[joined.protocol]
        return {
            member: encode_assignment(
                GroupAssignment(
                    error=CONFIG_MISMATCH if behind else 0,
                    leader=joined.leader_id,
                    leader_url=self._url,
                    config_offset=self._configs.offset,
                    assigned=frozenset() if behind else delta.assigned,
                    revoked=frozenset() if behind else delta.revoked,
                ),
                version,
            )
            for member, delta in deltas.items()
        }

    async def _apply_assignment(self) -> None:
        """Waits until what is revoked has ended; sends heartbeats meanwhile, as stopping can take long."""
        following = asyncio.create_task(self._follow())
        try:
            while True:
                await asyncio.wait({following}, timeout=self._settings.heartbeat_s)
                if following.done():
                    following.result()
                    return
                with contextlib.suppress(ClusterError):
                    if await self._membership.heartbeat() is MemberStanding.LOST:
                        raise MemberLostError
        finally:
            await cancel_and_wait(following)

    async def _send_heartbeats(self) -> None:
        """Sends heartbeats until a rebalance is due."""
        while True:
            try:
                async with asyncio.timeout(self._settings.heartbeat_s):
                    await self._rejoin.wait()
            except TimeoutError:
                pass
            else:
                return
            try:
                standing = await self._membership.heartbeat()
            except ClusterError as error:
                self._note_problem(error)
                continue
            self.problem = None
            if standing is MemberStanding.REBALANCING:
                return
            if standing is MemberStanding.LOST:
                raise MemberLostError

    async def _drop_assignment(self) -> None:
        """Stops everything, because the group has assigned it to other nodes."""
        log.warning("Removed from group %s (session expired); rejoining", self._settings.group_id)
        self.held, self._assignment, self.leads = frozenset(), None, False
        await self._follow()

    def _note_problem(self, error: MirrorFlowError) -> None:
        if self.problem is None or self.problem.reason != error.reason:
            log.warning("group %s: %s", self._settings.group_id, error)
        self.problem = error
