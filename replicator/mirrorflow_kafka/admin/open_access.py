"""Finds out whether a client may use topics only as long as no ACL names them.

With `allow.everyone.if.no.acl.found=true` the first ACL of a topic denies it to everyone whom it does not name.
Brokers show neither the value of that setting nor who a super user is, so only a trial shows the rest.
"""

import asyncio

from mirrorflow_core.errors import NotAuthorizedError, UnreachableError
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_kafka.admin.acls import create_acls, delete_acls, describe_acls
from mirrorflow_kafka.admin.configs import describe_broker_configs
from mirrorflow_kafka.admin.topics import topic_operations
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import raise_for

SETTING = "allow.everyone.if.no.acl.found"
_AUTHORIZER = "authorizer.class.name"
# Authorizers that deny what no ACL allows, unless SETTING is there.
_KNOWN_AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
PROBE_USER = "User:mirrorflow-acl-probe"
APPLIED_TIMEOUT_S = 15.0
APPLIED_POLL_S = 0.05


async def may_be_open(cluster: Cluster) -> bool:
    """Return whether topics without ACLs may be open to everyone. Raises ClusterError."""
    try:
        found = await describe_broker_configs(cluster, _node(cluster), [SETTING, _AUTHORIZER])
    except NotAuthorizedError:
        return True
    authorizer = found.get(_AUTHORIZER)
    return SETTING in found or authorizer is None or authorizer.value not in _KNOWN_AUTHORIZERS


async def may_write_topic(cluster: Cluster, topic: str) -> bool:
    """Return whether this client may write to *topic*, which need not exist. Raises ClusterError."""
    found = await topic_operations(cluster, [topic], node_id=_node(cluster))
    return int(Operation.WRITE) in found.get(topic, frozenset())


async def loses_access(cluster: Cluster, topic: str) -> bool:
    """Return whether this client loses Write on *topic* as soon as an ACL for someone else names it.

    Creates such an ACL for a moment, so *topic* must be a name that no topic has. Raises ClusterError.
    """
    acl = AclBinding(
        resource_type=TOPIC,
        resource_name=topic,
        pattern_type=int(PatternType.LITERAL),
        principal=PROBE_USER,
        host="*",
        operation=int(Operation.READ),
        permission_type=int(Permission.ALLOW),
    )
    await _delete(cluster, acl)  # that of a process that was killed
    if not await may_write_topic(cluster, topic):
        return False
    try:
        for refusal in (await create_acls(cluster, [acl])).values():
            if refusal is not None:
                raise_for(
                    refusal.code,
                    cluster=cluster.alias,
                    request="CreateAcls",
                    subject=topic,
                    message=refusal.message,
                )
        await _wait(cluster, acl, present=True)
        return not await may_write_topic(cluster, topic)
    finally:
        await _delete(cluster, acl)


async def _delete(cluster: Cluster, acl: AclBinding) -> None:
    await delete_acls(cluster, [acl])
    await _wait(cluster, acl, present=False)


async def _wait(cluster: Cluster, acl: AclBinding, *, present: bool) -> None:
    """Wait until the broker that is asked for operations has applied a change of *acl*."""
    try:
        async with asyncio.timeout(APPLIED_TIMEOUT_S):
            while True:
                found = await describe_acls(
                    cluster,
                    resource_type=TOPIC,
                    resource_name=acl.resource_name,
                    pattern_type=acl.pattern_type,
                    node_id=_node(cluster),
                )
                if present == (acl in found):
                    return
                await asyncio.sleep(APPLIED_POLL_S)
    except TimeoutError:
        problem = f"a change of the ACLs of topic {acl.resource_name} was not applied within {APPLIED_TIMEOUT_S:g} s"
        raise UnreachableError(cluster=cluster.alias, addresses="its brokers", problem=problem) from None


def _node(cluster: Cluster) -> int:
    return min(cluster.metadata.brokers)
