"""Rules of one cluster: each is asked of the source and of the target (see `validate`)."""

from collections.abc import Callable, Iterable

from mirrorflow_operator.api import validate_authentication
from mirrorflow_operator.api.cluster import Cluster
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import FieldError

PORT_MAX = 65_535
# What `tls`, `authentication` and `bootstrapServers` say; said twice, one of them would win in silence.
SECURITY_KEYS = ("security.", "ssl.", "sasl.")
CLIENTS = ("consumer.", "producer.", "admin.")
ClusterRule = Callable[[str, Cluster], Iterable[FieldError]]


def ports_exist(path: str, cluster: Cluster) -> Iterable[FieldError]:
    """A port has sixteen bits."""
    for at, address in enumerate(cluster.bootstrap_servers):
        if not 0 < int(address.rpartition(":")[2]) <= PORT_MAX:
            yield FieldError(
                path=f"{path}.bootstrapServers[{at}]",
                message=f"{address} has no possible port",
                action="write host:port with a port from 1 to 65535",
            )
        if address in cluster.bootstrap_servers[:at]:
            yield FieldError(
                path=f"{path}.bootstrapServers[{at}]",
                message=f"{address} is listed twice",
                action="remove one of them",
            )


def certificates_are_somewhere(path: str, cluster: Cluster) -> Iterable[FieldError]:
    """In a Secret or in a ConfigMap."""
    for at, certificate in enumerate(cluster.tls.trusted_certificates if cluster.tls else ()):
        if (certificate.secret_name is None) == (certificate.config_map_name is None):
            yield FieldError(
                path=f"{path}.tls.trustedCertificates[{at}]",
                message="it needs one of secretName and configMapName",
                action="name the Secret or the ConfigMap that holds the PEM file",
            )


def config_leaves_security_alone(path: str, cluster: Cluster) -> Iterable[FieldError]:
    """Security and addresses have fields of their own."""
    for key in cluster.config:
        plain = next((key.removeprefix(client) for client in CLIENTS if key.startswith(client)), key)
        if plain.startswith(SECURITY_KEYS):
            yield FieldError(
                path=f"{path}.config[{key}]",
                message="security is not set here",
                action=f"use {path}.tls and {path}.authentication (type Custom takes any sasl. and ssl. key)",
            )
        elif plain == "bootstrap.servers":
            yield FieldError(
                path=f"{path}.config[{key}]",
                message="addresses are not set here",
                action=f"use {path}.bootstrapServers",
            )


CLUSTER_RULES: tuple[ClusterRule, ...] = (
    ports_exist,
    certificates_are_somewhere,
    *validate_authentication.RULES,
    config_leaves_security_alone,
)


def both_clusters(flow: MirrorFlow) -> Iterable[FieldError]:
    """Every cluster rule, of the source and of the target."""
    for path, cluster in (("spec.source", flow.spec.source), ("spec.target", flow.spec.target)):
        for rule in CLUSTER_RULES:
            yield from rule(path, cluster)


RULES = (both_clusters,)
