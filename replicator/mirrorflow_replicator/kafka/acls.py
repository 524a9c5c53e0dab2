"""What a cluster allows: its ACLs, and what we ourselves may do."""

from dataclasses import dataclass
from typing import Final

from kafka.protocol.admin import DescribeAclsRequest, DescribeClusterRequest

from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import raise_for

ANY: Final = 1  # of every enumeration here
TOPIC: Final = 2  # ResourceType


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBinding:
    """One ACL; the numbers are those of ResourceType, PatternType, AclOperation and AclPermissionType."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


async def describe_acls(
    cluster: Cluster,
    *,
    resource_type: int = ANY,
    resource_name: str | None = None,
    pattern_type: int = ANY,
    principal: str | None = None,
) -> tuple[AclBinding, ...]:
    """The ACLs that match. Raises NotAuthorizedError (DESCRIBE on the cluster), BrokerError (54: no authorizer)."""
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
    answer = await cluster.call(request)
    raise_for(answer.error_code, cluster=cluster.alias, request="DescribeAcls", message=answer.error_message)
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


async def cluster_operations(cluster: Cluster) -> frozenset[int]:
    """The AclOperation codes that we have on the cluster itself (KIP-430, KIP-700). Raises ClusterError."""
    answer = await cluster.call(DescribeClusterRequest(include_cluster_authorized_operations=True))
    raise_for(
        answer.error_code, cluster=cluster.alias, request="DescribeCluster", message=answer.error_message
    )
    return frozenset(answer.authorized_operations or ())
