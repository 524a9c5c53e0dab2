"""Resources as users of the demo and of the end-to-end tests write them.

They are Secrets of two Kafka clusters, and a flow.
"""

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
    """Creates a cluster of one broker on *address* with TLS and SCRAM, which is not yet started.

    *options* are a KafkaCluster's.
    """
    return KafkaCluster(name=name, listeners=(LISTENER,), address=address, **options)


def secret(name: str, **values: str | bytes) -> Object:
    """Creates a Secret. Underscores in the names of *values* become dots."""
    data = {
        key.replace("_", "."): base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
        for key, value in values.items()
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def secrets_of(cluster: KafkaCluster, *, user: User | None = None) -> list[Object]:
    """Creates the Secrets `<name>-ca` with the CA and `<name>-mirror` with the user's password."""
    if cluster.certificates is None:
        raise ValueError(f"{cluster.name} has no certificates")
    password = (user or cluster.users[0]).password
    return [
        secret(f"{cluster.name}-ca", ca_crt=cluster.certificates.ca_pem.read_bytes()),
        secret(f"{cluster.name}-mirror", password=password),
    ]


def side(cluster: KafkaCluster, *, alias: str = "") -> Object:
    """Returns the cluster as `spec.source` or `spec.target` describes it."""
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
    """Creates a MirrorFlow. *spec* has further fields."""
    return {
        "apiVersion": API_VERSION,
        "kind": "MirrorFlow",
        "metadata": {"name": name},
        "spec": {"source": source, "target": target, "topics": {"include": list(topics)}, **spec},
    }


def merge_patch(spec: Mapping[str, Any]) -> str:
    """Returns a patch for `kubectl patch --type=merge`."""
    return json.dumps({"spec": spec})


def condition(resource: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    """Returns the condition *type_* of a MirrorFlow's status, or an empty one if it is missing."""
    conditions = resource.get("status", {}).get("conditions", ())
    return next((entry for entry in conditions if entry["type"] == type_), {})
