"""The files of a MirrorPair between two clusters of the harness.

They are the pair, its flows, and the secrets of its users.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User

APP, MIRROR = User(name="app", password="app-secret"), User(name="mirror", password="mirror-secret")
USERS = (APP, MIRROR)
CANARY = "mm2-switchover-canary.internal"
API = "mirrorflow.io/v1alpha1"


def secured_cluster(name: str, *, brokers: int = 1, config: Mapping[str, str] | None = None) -> KafkaCluster:
    """Returns a cluster, not yet started, whose users need ACLs."""
    return KafkaCluster(
        name=name,
        brokers=brokers,
        listeners=("SASL_PLAINTEXT",),
        authorizer=True,
        users=USERS,
        config=config or {},
    )


def allow_users(cluster: KafkaCluster, topic: str) -> None:
    """Grants the flows everything, and the applications access to their topic and groups."""
    cluster.allow("ALL", "CLUSTER", "kafka-cluster")
    for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID"):
        cluster.allow("ALL", kind, "*")
    for name in (topic, CANARY):
        cluster.allow("ALL", "TOPIC", name, user=APP.name)
    for kind in ("GROUP", "TRANSACTIONAL_ID"):
        cluster.allow("ALL", kind, "*", user=APP.name)


def write_pair(
    folder: Path,
    sides: Mapping[str, KafkaCluster],
    *,
    name: str,
    topic: str,
    group: str,
    endpoint: Path,
    deadline_s: int = 60,
) -> Path:
    """Writes the pair, each flow and the secrets into *folder*, and returns the pair's file.

    The first side is active.
    """
    for user in USERS:
        secret = folder / user.name
        secret.mkdir()
        (secret / "password").write_text(user.password)
    east, west = sides
    endpoint.write_text(east)
    flows = [_flow(sides, source, target, topic, group) for source, target in ((east, west), (west, east))]
    for flow in flows:
        flow_file(folder, flow["spec"]["source"]["alias"]).write_text(yaml.safe_dump(flow, sort_keys=False))
    # Clients that read the file before the first switchover find a member.
    hook = ["/bin/sh", "-c", f"printf %s $MIRRORFLOW_TO > {endpoint}.new && mv {endpoint}.new {endpoint}"]
    pair = {
        "apiVersion": API,
        "kind": "MirrorPair",
        "metadata": {"name": name},
        "spec": {
            "members": {
                source: {"flow": f"{source}-to-{target}", "probe": _plain(APP)}
                for source, target in ((east, west), (west, east))
            },
            "fence": {"method": "DenyAcl", "exceptPrincipals": [f"User:{MIRROR.name}"]},
            "groups": {"include": [group]},
            "endpoint": {"hook": {"command": hook}},
            "deadlineSeconds": deadline_s,
        },
    }
    file = folder / "pair.yaml"
    file.write_text(yaml.safe_dump_all([pair, *flows], sort_keys=False))
    return file


def flow_file(folder: Path, source: str) -> Path:
    """Returns the path of the flow that runs while *source* is active."""
    return folder / f"from-{source}.yaml"


def _flow(
    sides: Mapping[str, KafkaCluster], source: str, target: str, topic: str, group: str
) -> dict[str, Any]:
    def cluster(alias: str) -> dict[str, Any]:
        return {
            "alias": alias,
            "bootstrapServers": sides[alias].bootstrap.split(","),
            "authentication": _plain(MIRROR),
        }

    return {
        "apiVersion": API,
        "kind": "MirrorFlow",
        "metadata": {"name": f"{source}-to-{target}"},
        "spec": {
            "source": cluster(source),
            "target": cluster(target),
            "topics": {"include": [topic], "naming": {"policy": "Identity"}},
            "groups": {"include": [group]},
            # Otherwise consumers of the copy would read aborted records.
            "isolationLevel": "ReadCommitted",
            "connectors": {"source": {"config": {"offset.flush.interval.ms": "500"}}},
        },
    }


def _plain(user: User) -> dict[str, Any]:
    return {
        "type": "Plain",
        "username": {"value": user.name},
        "password": {"secretName": user.name, "key": "password"},
    }
