"""Describes, creates and deletes the ACLs of a cluster, and finds out what this client may do.

With `allow.everyone.if.no.acl.found=true` the first ACL of a topic denies it to everyone whom it does not name. Brokers show
neither the value of that setting nor who a super user is, so only a trial shows whether a client would lose its access.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import astuple
from typing import Any, Final

from mirrorflow_core.errors import ClusterError, NotAuthorizedError
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.error_codes import BrokerRefusal
from mirrorflow_kafka.admin.configs import describe_broker_configs
from mirrorflow_kafka.admin.topics import topic_operations
from mirrorflow_kafka.client.cluster import Cluster, chunks

ANY: Final = 1  # the code of "any" in every enumeration used here
# The controller writes one record per ACL and refuses more than 10,000 records in one request.
ACLS_MAX: Final = 500
CLUSTER_RESOURCE: Final = "the cluster itself (kafka-acls --cluster)"
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


class AclNotAppliedError(ClusterError):
    """Raised when a broker of *cluster* does not list a change of the ACLs of *topic* in time, although the cluster has accepted it."""

    reason = "AclNotApplied"
    retriable = True

    def __init__(self, *, cluster: str, topic: str) -> None:
        super().__init__(
            f"Cluster {cluster} has accepted a change of the ACLs of topic {topic}, which was not applied within {APPLIED_TIMEOUT_S:g} s.",
            cluster=cluster,
        )


async def describe_acls(
    cluster: Cluster,
    *,
    resource_type: int = ANY,
    resource_name: str | None = None,
    permission_type: int = ANY,
    node_id: int | None = None,
) -> tuple[AclBinding, ...]:
    """Returns the ACLs that match, as broker *node_id* or any broker knows them.

    Raises NotAuthorizedError (needs Describe on the cluster), BrokerError (SECURITY_DISABLED).
    """
    from kafka.protocol.admin.acl import DescribeAclsRequest  # noqa: PLC0415 most flows sync no ACLs

    request = DescribeAclsRequest(
        resource_type_filter=resource_type,
        resource_name_filter=resource_name,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=permission_type,
        min_version=1,
    )
    response = await cluster.call(request, node_id=node_id)
    _raise_for_all(cluster, "DescribeAcls", "Describe", response)
    return tuple(
        AclBinding(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            pattern_type=resource.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    )


async def create_acls(cluster: Cluster, acls: Sequence[AclBinding]) -> dict[AclBinding, BrokerRefusal | None]:
    """Creates *acls*; returns None for each ACL that now exists, otherwise the broker's refusal.

    Raises NotAuthorizedError (needs Alter on the cluster), BrokerError (SECURITY_DISABLED), ClusterError.
    """
    from kafka.protocol.admin.acl import CreateAclsRequest  # noqa: PLC0415 as in `describe_acls`

    responses: dict[AclBinding, BrokerRefusal | None] = {}
    for chunk in chunks(acls, ACLS_MAX):
        creations = [CreateAclsRequest.AclCreation(*astuple(acl)) for acl in chunk]
        response = await cluster.call(CreateAclsRequest(creations=creations, min_version=1))
        responses |= _refusals(cluster, "CreateAcls", chunk, response.results)
    return responses


async def delete_acls(cluster: Cluster, acls: Sequence[AclBinding]) -> dict[AclBinding, BrokerRefusal | None]:
    """Deletes exactly *acls*; returns None for each ACL that no longer exists. Raises as `create_acls`."""
    from kafka.protocol.admin.acl import DeleteAclsRequest  # noqa: PLC0415 as in `describe_acls`

    responses: dict[AclBinding, BrokerRefusal | None] = {}
    for chunk in chunks(acls, ACLS_MAX):
        filters = [DeleteAclsRequest.DeleteAclsFilter(*astuple(acl)) for acl in chunk]
        response = await cluster.call(DeleteAclsRequest(filters=filters, min_version=1))
        responses |= _refusals(cluster, "DeleteAcls", chunk, response.filter_results)
    return responses


def _refusals(
    cluster: Cluster, request: str, acls: Collection[AclBinding], results: Sequence[Any]
) -> dict[AclBinding, BrokerRefusal | None]:
    """Pairs *acls* with *results*: the broker returns results in request order."""
    for result in results:
        if result.error_code in {error_codes.CLUSTER_AUTHORIZATION_FAILED, error_codes.SECURITY_DISABLED}:
            _raise_for_all(cluster, request, "Alter", result)
    return {
        acl: BrokerRefusal.of(result.error_code, result.error_message)
        for acl, result in zip(acls, results, strict=True)
    }


def _raise_for_all(cluster: Cluster, request: str, operation: str, response: Any) -> None:
    if response.error_code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
        raise NotAuthorizedError(cluster=cluster.alias, operation=operation, resource=CLUSTER_RESOURCE)
    cluster.raise_for(response.error_code, request, message=response.error_message)


async def cluster_operations(cluster: Cluster) -> frozenset[int]:
    """Returns the AclOperation codes this client has on the cluster (KIP-430, KIP-700). Raises ClusterError."""
    from kafka.protocol.admin.cluster import DescribeClusterRequest  # noqa: PLC0415 as in `describe_acls`

    response = await cluster.call(DescribeClusterRequest(include_cluster_authorized_operations=True))
    cluster.raise_for(response.error_code, "DescribeCluster", message=response.error_message)
    return frozenset(response.authorized_operations or ())


async def may_be_open(cluster: Cluster) -> bool:
    """Returns whether topics without ACLs may be open to everyone. Raises ClusterError."""
    try:
        configs = await describe_broker_configs(cluster, _node(cluster), [SETTING, _AUTHORIZER])
    except NotAuthorizedError:
        return True
    authorizer = configs.get(_AUTHORIZER)
    return SETTING in configs or authorizer is None or authorizer.value not in _KNOWN_AUTHORIZERS


async def may_write_topic(cluster: Cluster, topic: str) -> bool:
    """Returns whether this client may write to *topic*, which need not exist. Raises ClusterError."""
    operations = await topic_operations(cluster, [topic], node_id=_node(cluster))
    return int(Operation.WRITE) in operations.get(topic, frozenset())


async def loses_access(cluster: Cluster, topic: str) -> bool:
    """Returns whether this client loses Write on *topic* as soon as an ACL for someone else names it.

    Creates such an ACL for a moment, so *topic* must be a name that no topic has. Raises AclNotAppliedError, ClusterError.
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
                cluster.raise_for(refusal.code, "CreateAcls", topic, message=refusal.message)
        await _wait(cluster, acl, present=True)
        return not await may_write_topic(cluster, topic)
    finally:
        await _delete(cluster, acl)


async def _delete(cluster: Cluster, acl: AclBinding) -> None:
    await delete_acls(cluster, [acl])
    await _wait(cluster, acl, present=False)


async def _wait(cluster: Cluster, acl: AclBinding, *, present: bool) -> None:
    """Waits until the broker that is asked for operations has applied a change of *acl*. Raises AclNotAppliedError, ClusterError."""
    try:
        async with asyncio.timeout(APPLIED_TIMEOUT_S):
            while True:
                acls = await describe_acls(
                    cluster, resource_type=TOPIC, resource_name=acl.resource_name, node_id=_node(cluster)
                )
                if present == (acl in acls):
                    return
                await asyncio.sleep(APPLIED_POLL_S)
    except TimeoutError:
        raise AclNotAppliedError(cluster=cluster.alias, topic=acl.resource_name) from None


def _node(cluster: Cluster) -> int:
    return min(cluster.metadata.brokers)
