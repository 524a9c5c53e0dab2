"""A member of a classic Kafka group: join, sync, heartbeat and leave, as in Java's AbstractCoordinator.

    join ──> sync ──> heartbeat, heartbeat, ... ──> REBALANCING: join again, keep the assignment
                                                └─> LOST: removed from the group; the assignment is void

The coordinator delays the response to a join until all members have joined, and it answers a connection in
order, so each membership has its own connection. Nothing is retried here: the caller joins again.
`connect.group_assignment` encodes the metadata and assignments.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from mirrorflow_core.connect.group_assignment import PROTOCOL_TYPE
from mirrorflow_core.errors import ClusterError
from mirrorflow_core.settings import GroupSettings
from mirrorflow_core.wire.error_codes import (
    COORDINATOR_MOVED,
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from mirrorflow_kafka.admin.groups import GROUP_COORDINATOR
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.connection import Connection

MEMBER_ID_REQUIRED: Final = 79  # KIP-394: the response holds the member id to join with
_GONE: Final = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID})
_PURPOSE = "group"
RESPONSE_S = 5.0  # timeout of requests to which the coordinator responds at once
LEAVE_S = 2.0  # a member that cannot leave is removed after the session timeout anyway
JOIN_MARGIN_S = 5.0  # on top of the rebalance timeout, for the round trip
_SYNC_WITHOUT_PROTOCOL: Final = 4  # version 5 adds protocol type and name, which the join has already settled
_LEAVE_WITH_MEMBERS: Final = 3  # the first version that names members in a list


class MemberStanding(Enum):
    """The member's state according to the coordinator's heartbeat response."""

    MEMBER = "member"
    REBALANCING = "rebalancing"
    LOST = "lost"


class MemberLostError(Exception):
    """Raised if the coordinator does not know the member or its generation: it must join as a new one."""


class RejoinError(Exception):
    """Raised when a new rebalance has begun: the member must join again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The result of a join. `members` maps member ids to metadata for the group leader, and is empty otherwise."""

    generation: int
    member_id: str
    leader_id: str
    protocol: str
    members: Mapping[str, bytes]

    @property
    def leads(self) -> bool:
        """Whether this member is the group leader, which computes the assignments."""
        return self.member_id == self.leader_id


class Membership:
    """One membership in a group. One call at a time, except that `leave` may be called at any time."""

    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._connection: Connection | None = None
        self._member_id = ""
        self._generation = -1

    async def join(self, metadata: Mapping[str, bytes]) -> Joined:
        """Joins the group; returns when all members have joined.

        *metadata* is by protocol name, preferred first.

        Raises MemberLostError (join again: the member id is dropped), RejoinError, ClusterError.
        """
        settings = self._settings
        protocol_class = JoinGroupRequest.JoinGroupRequestProtocol
        protocols = [protocol_class(*pair) for pair in metadata.items()]
        for _ in range(2):
            response = await self._call(
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
            if response.error_code != MEMBER_ID_REQUIRED:
                break
            self._member_id = response.member_id
        self._check(response.error_code, "JoinGroup")
        self._member_id, self._generation = response.member_id, int(response.generation_id)
        return Joined(
            generation=self._generation,
            member_id=self._member_id,
            leader_id=response.leader,
            protocol=response.protocol_name or "",
            members={member.member_id: bytes(member.metadata) for member in response.members},
        )

    async def sync(self, assignments: Mapping[str, bytes]) -> bytes:
        """Returns this member's assignment; only the group leader passes *assignments*, by member id. Raises as `join`."""
        assignment_class = SyncGroupRequest.SyncGroupRequestAssignment
        response = await self._call(
            SyncGroupRequest(
                group_id=self._settings.group_id,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
                protocol_type=None,
                protocol_name=None,
                assignments=[assignment_class(*pair) for pair in assignments.items()],
                max_version=_SYNC_WITHOUT_PROTOCOL,
            ),
            timeout_s=self._settings.rebalance_s + JOIN_MARGIN_S,
        )
        self._check(response.error_code, "SyncGroup")
        return bytes(response.assignment)

    async def heartbeat(self) -> MemberStanding:
        """Sends a heartbeat; returns the member's state.

        Raises ClusterError if the coordinator cannot be reached; the state is unknown then.
        """
        response = await self._call(
            HeartbeatRequest(
                group_id=self._settings.group_id,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
            ),
            timeout_s=RESPONSE_S,
        )
        try:
            self._check(response.error_code, "Heartbeat")
        except MemberLostError:
            return MemberStanding.LOST
        except RejoinError:
            return MemberStanding.REBALANCING
        return MemberStanding.MEMBER

    async def leave(self) -> None:
        """Leaves the group, so that the others need not wait for the session timeout. Raises ClusterError."""
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
        """Sends *request* to the coordinator; after a failure the next call finds the coordinator again."""
        connection = self._connection
        if connection is None or not connection.is_open or connection.is_retired:
            node_id = await self._cluster.coordinator((GROUP_COORDINATOR, self._settings.group_id), anew=True)
            connection = self._connection = await self._cluster.connection(node_id, purpose=_PURPOSE)
        try:
            response = await connection.call(request, timeout_s=timeout_s)
        except (ClusterError, asyncio.CancelledError):
            connection.close()  # the next request would queue behind a join that waits for all members
            self._connection = None
            raise
        if response.error_code in COORDINATOR_MOVED:
            self._connection = None
        return response

    def _check(self, code: int, request: str) -> None:
        if code in _GONE:
            self._member_id = ""
            raise MemberLostError
        if code == REBALANCE_IN_PROGRESS:
            raise RejoinError
        self._cluster.raise_for(code, request, self._settings.group_id)
