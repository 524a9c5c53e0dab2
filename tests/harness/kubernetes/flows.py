"""What a user of the demo and of the end-to-end tests applies: Secrets of two secured Kafka clusters, and a flow between them."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User

LISTENER = "SASL_SSL"
API_VERSION = "mirrorflow.io/v1alpha1"
Object = dict[str, Any]


def secured(name: str, address: str, **options: Any) -> KafkaCluster:
    """One broker, not yet started, on *address*: TLS, and SCRAM with the user `mirror`; *options* as a KafkaCluster has them."""
    return KafkaCluster(name=name, listeners=(LISTENER,), address=address, **options)


def secret(name: str, **values: str | bytes) -> Object:
    """A Secret; underscores in the names of *values* are dots."""
    data = {
        key.replace("_", "."): base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
        for key, value in values.items()
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def secrets_of(cluster: KafkaCluster, *, user: User | None = None) -> list[Object]:
    """`<name>-ca` with its authority, `<name>-mirror` with the user's password."""
    if cluster.certificates is None:
        raise ValueError(f"{cluster.name} has no certificates")
    password = (user or cluster.users[0]).password
    return [
        secret(f"{cluster.name}-ca", ca_crt=cluster.certificates.ca_pem.read_bytes()),
        secret(f"{cluster.name}-mirror", password=password),
    ]


def side(cluster: KafkaCluster, *, alias: str = "") -> Object:
    """The cluster as `spec.source` or `spec.target` names it."""
    return {
        "alias": alias or cluster.name,
        "bootstrapServers": cluster.bootstrap.split(","),
        "tls": {"trustedCertificates": [{"secretName": f"{cluster.name}-ca", "key": "ca.crt"}]},
        "authentication": {
            "type": "ScramSha512",
            "username": {"value": cluster.users[0].name},
            "password": {"secretName": f"{cluster.name}-mirror", "key": "password"},
        },
    }


def flow(name: str, source: Object, target: Object, topics: Sequence[str], **spec: Any) -> Object:
    """A MirrorFlow; *spec* has the rest of it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "MirrorFlow",
        "metadata": {"name": name},
        "spec": {"source": source, "target": target, "topics": {"include": list(topics)}, **spec},
    }


def merge_patch(spec: Mapping[str, Any]) -> str:
    """For `kubectl patch --type=merge`."""
    return json.dumps({"spec": spec})


def condition(resource: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    """The condition *type_* of a MirrorFlow's status; empty while there is none."""
    conditions = resource.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == type_), {})
