"""Keeps producers from writing to topics by DENY ACLs, and shows on a canary topic that the brokers enforce them.

A DENY wins over every ALLOW, and stops all but super users within some hundredths of a second (docs/switchover.md has the figures).
Only ACLs that the fence has created are removed: one that was there before is of an administrator.

Kafka has no exception to a DENY for `User:*`: it also stops a principal that an ALLOW names. So with exceptions, each
principal that an ALLOW lets write is denied by its name.

Topics that are created later are fenced where the flow selects all topics that begin with something: `orders.*`. Kafka has no ACL
for other patterns.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.errors import BrokerError, NotAuthorizedError, UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import TOPICS_EXCLUDE
from mirrorflow_core.topics.topic_acls import (
    ANY_NAME,
    TOPIC,
    AclBinding,
    Operation,
    PatternType,
    Permission,
)
from mirrorflow_core.wire.error_codes import NONE, SECURITY_DISABLED, TOPIC_AUTHORIZATION_FAILED, raise_for
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.acls import may_be_open
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import batches_of
from mirrorflow_replicator.switchover.errors import FenceUnavailableError

EVERYBODY: Final = "User:*"
CANARY_TOPIC: Final = "mm2-switchover-canary.internal"
# A controller publishes an ACL to its brokers within some hundredths of a second; one that needs longer is in trouble, and
# so is a switchover that depends on it.
LISTED_TIMEOUT_S: Final = 15.0
LISTED_POLL_S: Final = 0.02
_PRODUCE_TIMEOUT_MS: Final = 10_000
# A literal beginning, then anything; in a topic's name only the dot has a meaning in an expression.
_PREFIX: Final = re.compile(r"((?:[a-zA-Z0-9_-]|\\\.)+)\.\*")
_LITERAL_HEAD: Final = re.compile(r"(?:[a-zA-Z0-9_-]|\\\.)*")
# Excluded by default whatever a name begins with: no prefix would be left.
_ANYWHERE: Final = frozenset(pattern for pattern in TOPICS_EXCLUDE if pattern.startswith(".*"))
_WRITES: Final = frozenset({int(Operation.WRITE), int(Operation.ALL)})


def fenced_prefixes(
    patterns: Iterable[str],
    existing: Collection[str],
    selects: Callable[[str], bool],
    *,
    excluded: Collection[str] = (),
) -> frozenset[str]:
    """Returns what the topics begin with that *patterns* select whole: `orders.*`, but not `.*`, nor `orders-[0-9]+`.

    A beginning is left out if an *existing* topic has it which the flow does not select, or if a later one may have it which an
    expression of *excluded* matches: its writers must not be denied.
    """
    matches = (_PREFIX.fullmatch(pattern) for pattern in patterns)
    prefixes = {match[1].replace("\\", "") for match in matches if match is not None}
    return frozenset(
        prefix
        for prefix in prefixes
        if all(selects(topic) for topic in existing if topic.startswith(prefix))
        and not any(_may_match(pattern, prefix) for pattern in excluded if pattern not in _ANYWHERE)
    )


def _may_match(pattern: str, prefix: str) -> bool:
    """Returns whether *pattern* may match a name that begins with *prefix*; True if that is not known."""
    match = _LITERAL_HEAD.match(pattern)
    assert match is not None, "it may be empty"
    head, rest = match[0].replace("\\", ""), pattern[match.end() :]
    if not rest:
        return head.startswith(prefix)
    if "|" in rest:
        return True
    if rest[0] in "?*{":
        head = head[:-1]  # the last character may be missing
    return head.startswith(prefix) or prefix.startswith(head)


def fence_acls(
    topics: Collection[str],
    acls: Iterable[AclBinding],
    *,
    except_principals: Collection[str],
    prefixes: Collection[str] = (),
) -> frozenset[AclBinding]:
    """Returns the ACLs that deny writing to *topics* to everybody but super users and *except_principals*.

    They also deny it to topics that are created later and begin with one of *prefixes*. *acls* are those of the cluster's topics.
    Raises ValueError, with the sentence, if they let everybody write, so that the writers have no names.
    """
    if not except_principals:
        beginnings = (_deny(prefix, EVERYBODY, PatternType.PREFIXED) for prefix in prefixes)
        return frozenset([*beginnings, *(_deny(topic, EVERYBODY) for topic in topics)])
    allowed = [
        acl
        for acl in acls
        if acl.resource_type == TOPIC
        and acl.operation in _WRITES
        and acl.permission_type == Permission.ALLOW
        and acl.principal not in except_principals
    ]
    denials = {_deny(topic, acl.principal) for topic in topics for acl in allowed if _matches(acl, topic)}
    within = (_deny_within(acl, prefix) for prefix in prefixes for acl in allowed)
    denials.update(denial for denial in within if denial is not None)
    if any(denial.principal == EVERYBODY for denial in denials):
        acl = next(acl for acl in allowed if acl.principal == EVERYBODY)
        raise ValueError(f"the ACL {acl} lets writers in that have no name to be denied")
    return frozenset(denials)


def _deny_within(acl: AclBinding, prefix: str) -> AclBinding | None:
    """Returns what denies to the principal of *acl* the topics that it allows and that begin with *prefix*; None: there are none."""
    name, is_prefixed = acl.resource_name, acl.pattern_type == PatternType.PREFIXED
    if name.startswith(prefix):
        return _deny(name, acl.principal, PatternType(acl.pattern_type))
    if name == ANY_NAME or (is_prefixed and prefix.startswith(name)):
        return _deny(prefix, acl.principal, PatternType.PREFIXED)
    return None


def _matches(acl: AclBinding, topic: str) -> bool:
    if acl.pattern_type == PatternType.PREFIXED:
        return topic.startswith(acl.resource_name)
    return acl.resource_name in {topic, ANY_NAME}


def _deny(topic: str, principal: str, pattern: PatternType = PatternType.LITERAL) -> AclBinding:
    return AclBinding(
        resource_type=TOPIC,
        resource_name=topic,
        pattern_type=int(pattern),
        principal=principal,
        host="*",
        operation=int(Operation.WRITE),
        permission_type=int(Permission.DENY),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAcls:
    """The ACLs that all brokers have, and those that any broker has."""

    by_all: frozenset[AclBinding]
    by_any: frozenset[AclBinding]


class AclFence:
    """The fence around topics of one cluster, whose client needs Describe and Alter on the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def plan(
        self, topics: Collection[str], *, except_principals: Collection[str], prefixes: Collection[str] = ()
    ) -> frozenset[AclBinding]:
        """Returns the ACLs to create; those that are there already stay when the fence is lifted. Arguments as in `fence_acls`.

        Raises FenceUnavailableError, NotAuthorizedError, ClusterError.
        """
        alias = self._cluster.alias
        try:
            acls = await admin.describe_acls(self._cluster, resource_type=TOPIC)
        except BrokerError as error:
            raise self._translated(error) from error
        try:
            wanted = fence_acls(topics, acls, except_principals=except_principals, prefixes=prefixes)
        except ValueError as error:
            action = (
                "replace that ACL by one for each principal that writes, or empty spec.fence.exceptPrincipals"
            )
            raise FenceUnavailableError(cluster=alias, problem=str(error), action=action) from error
        if except_principals and await may_be_open(self._cluster):
            raise FenceUnavailableError(
                cluster=alias,
                problem="its brokers may let everybody write to topics without ACLs (allow.everyone.if.no.acl.found), "
                "so not all writers have a name to be denied",
                action="empty spec.fence.exceptPrincipals and make the principal of the flow back a super user, or remove that setting",
            )
        return wanted - frozenset(acls)

    async def create(self, acls: Collection[AclBinding]) -> None:
        """Creates *acls* and waits until each broker has them. Raises FenceUnavailableError, ClusterError."""
        try:
            refusals = await admin.create_acls(self._cluster, sorted(acls))
        except BrokerError as error:
            raise self._translated(error) from error
        for acl, refusal in refusals.items():
            if refusal is not None:
                self._cluster.raise_for(refusal.code, "CreateAcls", str(acl), message=refusal.message)
        await self._wait(acls, present=True)

    async def lift(self, acls: Collection[AclBinding]) -> None:
        """Deletes exactly *acls* and waits until no broker has any of them. Raises ClusterError."""
        refusals = await admin.delete_acls(self._cluster, sorted(acls))
        for acl, refusal in refusals.items():
            if refusal is not None:
                self._cluster.raise_for(refusal.code, "DeleteAcls", str(acl), message=refusal.message)
        await self._wait(acls, present=False)

    async def listed(self, acls: Collection[AclBinding]) -> ListedAcls:
        """Returns those of *acls* that the brokers have. Raises ClusterError."""
        await self._cluster.refresh([])
        listings = await asyncio.gather(
            *(
                admin.describe_acls(
                    self._cluster,
                    resource_type=TOPIC,
                    permission_type=int(Permission.DENY),
                    node_id=node_id,
                )
                for node_id in sorted(self._cluster.metadata.brokers)
            )
        )
        ours = [frozenset(listing) & frozenset(acls) for listing in listings]
        return ListedAcls(by_all=frozenset.intersection(*ours), by_any=frozenset.union(*ours))

    async def _wait(self, acls: Collection[AclBinding], *, present: bool) -> None:
        wanted = frozenset(acls)
        try:
            async with asyncio.timeout(LISTED_TIMEOUT_S):
                while True:
                    listed = await self.listed(wanted)
                    if listed.by_all == wanted if present else not listed.by_any:
                        return
                    await asyncio.sleep(LISTED_POLL_S)
        except TimeoutError:
            change = "created" if present else "deleted"
            problem = f"not all brokers know within {LISTED_TIMEOUT_S:g} s that ACLs were {change}"
            raise UnreachableError(
                cluster=self._cluster.alias, addresses="its brokers", problem=problem
            ) from None

    def _translated(self, error: BrokerError) -> Exception:
        if error.code != SECURITY_DISABLED:
            return error
        return FenceUnavailableError(
            cluster=self._cluster.alias,
            problem="its brokers have no authorizer, so no ACL stops a producer",
            action="set authorizer.class.name on all brokers, or write spec.fence.method: Hook or None",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTimes:
    """How long after the request a write was refused for the first time, and accepted after lifting; seconds."""

    refused_after_s: float
    accepted_after_s: float


async def try_fence(cluster: Cluster, probe: Cluster, *, replication_factor: int = -1) -> CanaryTimes:
    """Fences the canary topic, and lifts that again; *probe* writes as a producer that is no super user.

    Raises FenceUnavailableError if the fence does not hold, or cannot be lifted; ClusterError.
    """
    fence, acl, alias = AclFence(cluster), _deny(CANARY_TOPIC, EVERYBODY), cluster.alias
    await _create_canary(cluster, replication_factor)
    now = asyncio.get_running_loop().time
    created = acl in (await fence.listed([acl])).by_any  # of a process that was killed
    if created:
        await fence.lift([acl])
    if not await _is_accepted_within(probe, LISTED_TIMEOUT_S):
        raise NotAuthorizedError(cluster=alias, operation="Write", resource=f"topic {CANARY_TOPIC}")
    began_s = now()
    try:
        await fence.create([acl])
        refused = not await _is_accepted(probe)
        refused_after_s = now() - began_s
    finally:
        began_s = now()
        await fence.lift([acl])
    if not refused:
        raise FenceUnavailableError(
            cluster=alias,
            problem=f"a write to {CANARY_TOPIC} was accepted although an ACL denies it to everybody, so the user that wrote is a super user "
            "(super.users), or the authorizer does not obey ACLs",
            action=f"write the identity of an application into spec.members.{alias}.probe",
        )
    if not await _is_accepted_within(probe, LISTED_TIMEOUT_S):
        raise FenceUnavailableError(
            cluster=alias,
            problem=f"a write to {CANARY_TOPIC} is still refused after the ACL was deleted",
            action="check the brokers' authorizer",
        )
    return CanaryTimes(refused_after_s=refused_after_s, accepted_after_s=now() - began_s)


async def _create_canary(cluster: Cluster, replication_factor: int) -> None:
    await cluster.refresh([CANARY_TOPIC])
    if cluster.leader(CANARY_TOPIC, 0) is None:
        new = admin.NewTopic(
            name=CANARY_TOPIC, partitions=1, replication_factor=replication_factor, configs={}
        )
        await admin.create_topic_and_wait(cluster, new)


async def _is_accepted_within(probe: Cluster, timeout_s: float) -> bool:
    now = asyncio.get_running_loop().time
    deadline_s = now() + timeout_s
    while not await _is_accepted(probe):
        if now() >= deadline_s:
            return False
        await asyncio.sleep(LISTED_POLL_S)
    return True


async def _is_accepted(probe: Cluster) -> bool:
    """Returns whether the canary topic takes a record of *probe*; False if its user may not write. Raises ClusterError."""
    partition = TopicPartition(CANARY_TOPIC, 0)
    if probe.leader(*partition) is None:
        await probe.refresh([CANARY_TOPIC])
    if probe.leader(*partition) is None:
        return False  # the user may not even describe the topic
    batches = batches_of([Record(0, 0, None, b"canary")])
    codes = await admin.produce(probe, {partition: batches[0]}, timeout_ms=_PRODUCE_TIMEOUT_MS)
    code = codes[partition]
    if code not in {NONE, TOPIC_AUTHORIZATION_FAILED}:
        raise_for(code, cluster=probe.alias, request="Produce", subject=str(partition))
    return code == NONE
