"""A node of a Connect group: it meets the others, heartbeats, meets again when something has changed.

    read config topic ──> join ──> (leader: who does what) ──> sync ──> let go what is revoked ──> heartbeats ──┐
          ^            └─ at once where something was revoked, so that it finds a new home ─┘                  │
          └── another has come or gone, the leader finds other work to share out, we were taken for dead ──────┘

Promises: what this node holds is what the group says, and is told to the group at each meeting; what is revoked has
ended before the next meeting, so nobody else has it by then; what is not revoked goes on through all of it. As long as the
coordinator cannot be asked, the work goes on too: nobody else can be given it, and if we are wrong in that, the target
refuses the second copy (DESIGN 4.2). Only who is told that he is no member any more ends all, and comes again with nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from mirrorflow_replicator.connect import herd
from mirrorflow_replicator.connect.group_assignment import Units, share_out
from mirrorflow_replicator.connect.group_protocol import (
    CONFIG_MISMATCH,
    PROTOCOLS,
    GroupAssignment,
    MemberState,
    Unit,
    decode_assignment,
    decode_state,
    encode_assignment,
    encode_state,
)
from mirrorflow_replicator.errors import BrokerError, ClusterError, MirrorFlowError
from mirrorflow_replicator.kafka.membership import (
    Joined,
    MeetAgainError,
    MemberLostError,
    Membership,
    Standing,
)
from mirrorflow_replicator.kafka.worker_topics import ConfigTopic
from mirrorflow_replicator.runtime.hosting import ended
from mirrorflow_replicator.settings import GroupSettings

# After a meeting that failed: a coordinator that has moved is found within a second or two.
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 10.0
MEETING_S = 15.0  # how long a call waits for a meeting to be over, before it is told to come again
QUIET_S = 30.0  # for all nodes to end the tasks of a connector: a task takes 10 s at most, the meeting two
LOOK_S = 0.1
UNSYNC_S = 1.0  # after a meeting whose leader was behind: it reads on meanwhile

log = logging.getLogger("mirrorflow.group")


class Node:
    """See the module.

    *read* reads the config topic to its end; *follow* lets run what is held, and returns when all else has ended.
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
        self._again = asyncio.Event()
        self._assignment: GroupAssignment | None = None
        self._shared_out: Units = frozenset()
        self._states: Mapping[str, MemberState] = {}
        self.held: Units = frozenset()
        self.generation = -1
        self.protocol = ""
        self.leads = False
        self.leader_url = ""  # "" before the first meeting
        self.meeting = True  # who does what is being settled; commands wait
        self.problem: MirrorFlowError | None = None

    @property
    def signs(self) -> bool:
        """Whether requests between the nodes are signed."""
        return PROTOCOLS.get(self.protocol, 0) >= PROTOCOLS["sessioned"]

    def look(self) -> None:
        """The leader calls a meeting where there is other work than was shared out."""
        if self.leads and not self.meeting and herd.units(self._configs.configs) != self._shared_out:
            self._again.set()

    def owner(self, unit: Unit) -> str:
        """The URL of the node that has *unit*, as the leader knows it; "" where nobody has."""
        for state in self._states.values():
            if state.held is not None and unit in state.held.assigned:
                return state.url
        return ""

    def holders(self, connector: str) -> int:
        """How many nodes have tasks of *connector*, as the leader has heard at the last meeting."""
        return sum(
            any(unit.connector == connector and unit.task >= 0 for unit in state.held.assigned)
            for state in self._states.values()
            if state.held is not None
        )

    async def met(self) -> bool:
        """Wait until it is settled who leads; False where that takes too long."""
        return await self._until(lambda: bool(self.leader_url), timeout_s=MEETING_S)

    async def quiet(self, connector: str) -> bool:
        """Wait until no node has tasks of *connector* any more, as the leader knows it; False where that takes too long."""
        return await self._until(lambda: not self.holders(connector), timeout_s=QUIET_S)

    async def _until(self, is_true: Callable[[], bool], *, timeout_s: float) -> bool:
        for _ in range(round(timeout_s / LOOK_S)):
            if not self.meeting and is_true():
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def run(self) -> None:
        """Be a member until cancelled."""
        pause_s = BACKOFF_MIN_S
        while True:
            try:
                self.meeting = True
                await self._meet()
                self.problem, pause_s = None, BACKOFF_MIN_S
                await self._stay()
            except MemberLostError:
                await self._lose()
            except MeetAgainError:
                continue
            except MirrorFlowError as error:
                self._note(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    async def leave(self) -> None:
        """Say good-bye; nothing runs here any more."""
        try:
            await self._membership.leave()
        except MirrorFlowError as error:
            log.warning("the group could not be left in order: %s", error)

    async def _meet(self) -> None:
        self._again.clear()
        await self._read()
        joined = await self._membership.join(self._metadata())
        shares = self._shares(joined) if joined.leads else {}
        assignment = self._read_assignment(await self._membership.sync(shares))
        self.generation, self.protocol, self.leads = joined.generation, joined.protocol, joined.leads
        self.leader_url = assignment.leader_url
        if assignment.error:
            log.warning("the group's leader is behind the config topic; the group meets again")
            await asyncio.sleep(UNSYNC_S)
            raise MeetAgainError
        if assignment.config_offset > self._configs.offset:
            await self._read()
        revoked = assignment.revoked & self.held
        self.held = (self.held - revoked) | assignment.assigned
        self._assignment = replace(
            assignment, assigned=self.held, revoked=frozenset(), delay_ms=0, leader=joined.leader_id
        )
        log.info(
            "generation %d of group %s: %d units here, %d new, %d revoked%s",
            joined.generation,
            self._settings.group_id,
            len(self.held),
            len(assignment.assigned),
            len(revoked),
            "; this node leads" if joined.leads else "",
        )
        await self._followed()
        if revoked:
            raise MeetAgainError
        self.meeting = False
        self.look()

    def _read_assignment(self, data: bytes) -> GroupAssignment:
        try:
            return decode_assignment(data)
        except ValueError as problem:  # also where a leader had nothing for us, which ends as no bytes
            raise BrokerError(
                cluster=self._settings.client.alias,
                request="SyncGroup",
                code=0,
                name=f"an assignment that cannot be read ({problem})",
                subject=self._settings.group_id,
            ) from problem

    def _metadata(self) -> dict[str, bytes]:
        state = MemberState(url=self._url, config_offset=self._configs.offset, held=self._assignment)
        return {name: encode_state(state, PROTOCOLS[name]) for name in self._settings.protocols}

    def _shares(self, joined: Joined) -> dict[str, bytes]:
        """Each member's assignment in bytes, by its id."""
        states = {member: decode_state(data) for member, data in joined.members.items()}
        offset = max(state.config_offset for state in states.values())
        behind = offset > self._configs.offset
        held = {
            member: frozenset[Unit]() if state.held is None else state.held.assigned
            for member, state in states.items()
        }
        wanted = herd.units(self._configs.configs)
        shares = share_out(held, wanted)
        if not behind:
            self._shared_out = wanted
            self._states = {
                member: replace(
                    state,
                    held=GroupAssignment(
                        leader=joined.leader_id,
                        leader_url=self._url,
                        config_offset=offset,
                        # What is revoked is still there until the next meeting says otherwise.
                        assigned=held[member] | shares[member].assigned,
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
                    assigned=frozenset() if behind else share.assigned,
                    revoked=frozenset() if behind else share.revoked,
                ),
                version,
            )
            for member, share in shares.items()
        }

    async def _followed(self) -> None:
        """Wait until what is revoked has ended, and heartbeat meanwhile: that takes as long as a task takes to stop."""
        following = asyncio.create_task(self._follow())
        try:
            while True:
                await asyncio.wait({following}, timeout=self._settings.heartbeat_s)
                if following.done():
                    following.result()
                    return
                with contextlib.suppress(ClusterError):
                    if await self._membership.heartbeat() is Standing.LOST:
                        raise MemberLostError
        finally:
            await ended(following)

    async def _stay(self) -> None:
        """Heartbeat until there is something to meet about."""
        while True:
            try:
                async with asyncio.timeout(self._settings.heartbeat_s):
                    await self._again.wait()
            except TimeoutError:
                pass
            else:
                return
            try:
                standing = await self._membership.heartbeat()
            except ClusterError as error:
                self._note(error)
                continue
            self.problem = None
            if standing is Standing.REBALANCING:
                return
            if standing is Standing.LOST:
                raise MemberLostError

    async def _lose(self) -> None:
        """Others have our work by now."""
        log.warning("this node was taken for dead by group %s and comes again", self._settings.group_id)
        self.held, self._assignment, self.leads = frozenset(), None, False
        await self._follow()

    def _note(self, error: MirrorFlowError) -> None:
        if self.problem is None or self.problem.reason != error.reason:
            log.warning("group %s: %s", self._settings.group_id, error)
        self.problem = error
