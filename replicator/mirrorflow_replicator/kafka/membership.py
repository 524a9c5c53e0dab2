"""Being a member of a classic group: join, sync, heartbeat, leave, as Java's AbstractCoordinator does it.

    join ──> sync ──> heartbeat, heartbeat, ... ──> REBALANCING: join again, keeping what one has
                                                └─> LOST: others have taken us for dead; what one has is no longer one's own

Kafka holds the answer to a join back until all members have come, and answers a connection in order, so a membership has a
connection to its coordinator of its own. Nothing is repeated here: who calls meets again. What the members tell each
other in the bytes is `connect.group_protocol`'s.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from mirrorflow_replicator.connect.group_protocol import PROTOCOL_TYPE
from mirrorflow_replicator.errors import ClusterError
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import COORDINATOR_MOVED, raise_for
from mirrorflow_replicator.kafka.connection import Connection
from mirrorflow_replicator.kafka.groups import GROUP_COORDINATOR
from mirrorflow_replicator.settings import GroupSettings

ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
MEMBER_ID_REQUIRED: Final = 79  # KIP-394: the id to come with is in the answer
FENCED_INSTANCE_ID: Final = 82
_GONE: Final = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID})
_PURPOSE = "group"
ANSWER_S = 5.0  # of what is answered at once
LEAVE_S = 2.0  # who does not get to say good-bye is missed after the session time-out
JOIN_MARGIN_S = 5.0  # after the time for all to come, for the way there and back
_SYNC_WITHOUT_PROTOCOL: Final = (
    4  # version 5 compares the protocol's name, which the join has agreed on already
)
_LEAVE_WITH_MEMBERS: Final = 3  # the first version that names members in a list


class Standing(Enum):
    """What the coordinator says to a heartbeat."""

    MEMBER = "member"
    REBALANCING = "rebalancing"
    LOST = "lost"


class MemberLostError(Exception):
    """The coordinator does not know the member, or not in this generation: it has to join as a new one."""


class MeetAgainError(Exception):
    """The meeting has begun anew while one was in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One meeting. `members` have their metadata only where we lead; otherwise it is empty."""

    generation: int
    member_id: str
    leader_id: str
    protocol: str
    members: Mapping[str, bytes]

    @property
    def leads(self) -> bool:
        """Whether it is on us to say who does what."""
        return self.member_id == self.leader_id


class Membership:
    """See the module. One call at a time, except that `leave` may come at any time."""

    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._connection: Connection | None = None
        self._member_id = ""
        self._generation = -1

    async def join(self, metadata: Mapping[str, bytes]) -> Joined:
        """Wait until all have come; *metadata* is by name of protocol, preferred first.

        Raises MemberLostError (come again: it is forgotten who one was), MeetAgainError, ClusterError.
        """
        settings = self._settings
        protocol_class = JoinGroupRequest.JoinGroupRequestProtocol
        protocols = [protocol_class(name=name, metadata=data) for name, data in metadata.items()]
        for _ in range(2):
            answer = await self._call(
                JoinGroupRequest(
                    group_id=settings.group_id,
                    session_timeout_ms=round(settings.session_s * 1000),
                    rebalance_timeout_ms=round(settings.rebalance_s * 1000),
                    member_id=self._member_id,
                    group_instance_id=None,
                    protocol_type=PROTOCOL_TYPE,
                    protocols=protocols,
                    reason=None,
                ),
                timeout_s=settings.rebalance_s + JOIN_MARGIN_S,
            )
            if answer.error_code != MEMBER_ID_REQUIRED:
                break
            self._member_id = answer.member_id
        self._check(answer.error_code, "JoinGroup")
        self._member_id, self._generation = answer.member_id, int(answer.generation_id)
        return Joined(
            generation=self._generation,
            member_id=self._member_id,
            leader_id=answer.leader,
            protocol=answer.protocol_name or "",
            members={one.member_id: bytes(one.metadata) for one in answer.members},
        )

    async def sync(self, assignments: Mapping[str, bytes]) -> bytes:
        """What the leader says we do; *assignments* by member, from the leader alone. Raises as `join`."""
        assignment_class = SyncGroupRequest.SyncGroupRequestAssignment
        answer = await self._call(
            SyncGroupRequest(
                group_id=self._settings.group_id,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
                protocol_type=None,
                protocol_name=None,
                assignments=[
                    assignment_class(member_id=member, assignment=data)
                    for member, data in assignments.items()
                ],
                max_version=_SYNC_WITHOUT_PROTOCOL,
            ),
            timeout_s=self._settings.rebalance_s + JOIN_MARGIN_S,
        )
        self._check(answer.error_code, "SyncGroup")
        return bytes(answer.assignment)

    async def heartbeat(self) -> Standing:
        """Say that one is there. Raises ClusterError where the coordinator cannot be asked: nothing is known then."""
        answer = await self._call(
            HeartbeatRequest(
                group_id=self._settings.group_id,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
            ),
            timeout_s=ANSWER_S,
        )
        try:
            self._check(answer.error_code, "Heartbeat")
        except MemberLostError:
            return Standing.LOST
        except MeetAgainError:
            return Standing.REBALANCING
        return Standing.MEMBER

    async def leave(self) -> None:
        """Say good-bye, so that the others need not wait for us. Raises ClusterError."""
        member_id, self._member_id = self._member_id, ""
        if not member_id:
            return
        member_class = LeaveGroupRequest.MemberIdentity
        await self._call(
            LeaveGroupRequest(
                group_id=self._settings.group_id,
                members=[member_class(member_id=member_id, group_instance_id=None, reason=None)],
                min_version=_LEAVE_WITH_MEMBERS,
            ),
            timeout_s=LEAVE_S,
        )

    async def _call(self, request: Any, *, timeout_s: float) -> Any:
        """Ask the coordinator; after a failure it is looked for anew."""
        connection = self._connection
        if connection is None or not connection.is_open or connection.is_retired:
            node_id = await self._cluster.coordinator((GROUP_COORDINATOR, self._settings.group_id), anew=True)
            connection = self._connection = await self._cluster.connection(node_id, purpose=_PURPOSE)
        try:
            answer = await connection.call(request, timeout_s=timeout_s)
        except (ClusterError, asyncio.CancelledError):
            connection.close()  # what is asked next would wait behind a join that waits for all others
            self._connection = None
            raise
        if answer.error_code in COORDINATOR_MOVED:
            self._connection = None
        return answer

    def _check(self, code: int, request: str) -> None:
        if code in _GONE:
            self._member_id = ""
            raise MemberLostError
        if code == REBALANCE_IN_PROGRESS:
            raise MeetAgainError
        raise_for(code, cluster=self._cluster.alias, request=request, subject=self._settings.group_id)
