"""Describes, creates and deletes the ACLs of a cluster, and lists the operations this client may perform."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from kafka.protocol.admin import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClusterRequest,
)

from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_kafka.client import error_codes
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import BrokerRefusal, raise_for

ANY: Final = 1  # the code of "any" in every enumeration used here
# The controller writes one record per ACL and refuses more than 10,000 records in one request.
ACLS_MAX: Final = 500
CLUSTER_RESOURCE: Final = "the cluster itself (kafka-acls --cluster)"


async def describe_acls(
    cluster: Cluster,
    *,
    resource_type: int = ANY,
    resource_name: str | None = None,
    pattern_type: int = ANY,
    principal: str | None = None,
    node_id: int | None = None,
) -> tuple[AclBinding, ...]:
    """Return the ACLs that match, as broker *node_id* or any broker knows them.

    Raises NotAuthorizedError (needs Describe on the cluster), BrokerError (SECURITY_DISABLED).
    """
    request = DescribeAclsRequest(
        resource_type_filter=resource_type,
        resource_name_filter=resource_name,
        pattern_type_filter=pattern_type,
        principal_filter=principal,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
        min_version=1,
    )
    answer = await cluster.call(request, node_id=node_id)
    _raise_for_all(cluster, "DescribeAcls", "Describe", answer.error_code, answer.error_message)
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
        for resource in answer.resources
        for acl in resource.acls
    )


async def create_acls(cluster: Cluster, acls: Sequence[AclBinding]) -> dict[AclBinding, BrokerRefusal | None]:
    """Create *acls*; return None for each ACL that now exists, otherwise the broker's refusal.

    Raises NotAuthorizedError (needs Alter on the cluster), BrokerError (SECURITY_DISABLED), ClusterError.
    """
    answers: dict[AclBinding, BrokerRefusal | None] = {}
    for at in range(0, len(acls), ACLS_MAX):
        chunk = acls[at : at + ACLS_MAX]
        creations = [
            CreateAclsRequest.AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                resource_pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
            for acl in chunk
        ]
        answer = await cluster.call(CreateAclsRequest(creations=creations, min_version=1))
        answers |= _refusals(cluster, "CreateAcls", chunk, answer.results)
    return answers


async def delete_acls(cluster: Cluster, acls: Sequence[AclBinding]) -> dict[AclBinding, BrokerRefusal | None]:
    """Delete exactly *acls*; return None for each ACL that no longer exists. Raises as `create_acls`."""
    answers: dict[AclBinding, BrokerRefusal | None] = {}
    for at in range(0, len(acls), ACLS_MAX):
        chunk = acls[at : at + ACLS_MAX]
        filters = [
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=acl.resource_type,
                resource_name_filter=acl.resource_name,
                pattern_type_filter=acl.pattern_type,
                principal_filter=acl.principal,
                host_filter=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
            for acl in chunk
        ]
        answer = await cluster.call(DeleteAclsRequest(filters=filters, min_version=1))
        answers |= _refusals(cluster, "DeleteAcls", chunk, answer.filter_results)
    return answers


def _refusals(
    cluster: Cluster, request: str, acls: Collection[AclBinding], results: Sequence[Any]
) -> dict[AclBinding, BrokerRefusal | None]:
    """Pair *acls* with *results*: the broker returns results in request order."""
    for one in results:
        if one.error_code in {error_codes.CLUSTER_AUTHORIZATION_FAILED, error_codes.SECURITY_DISABLED}:
            _raise_for_all(cluster, request, "Alter", one.error_code, one.error_message)
    return {
        acl: BrokerRefusal.of(one.error_code, one.error_message)
        for acl, one in zip(acls, results, strict=True)
    }


def _raise_for_all(cluster: Cluster, request: str, operation: str, code: int, message: str | None) -> None:
    if code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
        raise NotAuthorizedError(cluster=cluster.alias, operation=operation, resource=CLUSTER_RESOURCE)
    raise_for(code, cluster=cluster.alias, request=request, message=message)


async def cluster_operations(cluster: Cluster) -> frozenset[int]:
    """Return the AclOperation codes this client has on the cluster (KIP-430, KIP-700).

    Raises ClusterError.
    """
    answer = await cluster.call(DescribeClusterRequest(include_cluster_authorized_operations=True))
    raise_for(
        answer.error_code, cluster=cluster.alias, request="DescribeCluster", message=answer.error_message
    )
    return frozenset(answer.authorized_operations or ())
