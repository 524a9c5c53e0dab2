"""How a connector reaches a cluster, in MM2's prefixes: `source.cluster.*`, `target.cluster.*`, and the keys of one client."""

from mirrorflow_operator.api.cluster import Cluster
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.security import security_properties

CLIENT_ROLES = ("consumer", "producer", "admin")


def cluster_properties(side: str, cluster: Cluster, layout: SecretLayout) -> dict[str, str]:
    """All that one side of a flow is told of its cluster; *side* is source or target."""
    connection = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers),
        **security_properties(cluster, layout),
    }
    return {
        f"{side}.cluster.alias": cluster.alias,
        **{f"{side}.cluster.{key}": value for key, value in connection.items()},
        **client_config(cluster, f"{side}."),
    }


def client_config(cluster: Cluster, prefix: str) -> dict[str, str]:
    """`config` of a cluster: MM2 takes such keys only with the name of a client in front."""
    properties: dict[str, str] = {}
    for key, value in cluster.config.items():
        names = [key] if key.startswith(tuple(f"{role}." for role in CLIENT_ROLES)) else _all_roles(key)
        properties |= {prefix + name: value for name in names}
    return properties


def _all_roles(key: str) -> list[str]:
    return [f"{role}.{key}" for role in CLIENT_ROLES]
