"""Runs Java's MirrorClient, RemoteClusterUtils and Heartbeat on a cluster with MM2's topics (MirrorQuery.java)."""

import itertools
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.harness.kafka.installation import QUICK_JVM, VERSION, java_command, write_properties
from tests.harness.kafka.processes import HarnessError
from tests.harness.kafka.tools import JavaEndpoint

QUERY_WAIT_S = 120.0  # two seconds on an idle machine
_calls = itertools.count()


@dataclass(frozen=True, kw_only=True, slots=True)
class Clusters:
    """The view of MirrorClient on one cluster."""

    upstream_clusters: tuple[str, ...]
    heartbeat_topics: tuple[str, ...]
    checkpoint_topics: tuple[str, ...]
    remote_topics: tuple[str, ...]
    hops: Mapping[str, int]  # -1 if it is not upstream


@dataclass(frozen=True, kw_only=True, slots=True)
class JavaHeartbeat:
    """A record of a heartbeats topic as Java's Heartbeat reads it. Key and value are in hexadecimal."""

    source_alias: str
    target_alias: str
    timestamp_ms: int
    record_timestamp_ms: int
    key: str
    value: str


def clusters(
    cluster: JavaEndpoint, aliases: Iterable[str], *, properties: Mapping[str, str] | None = None
) -> Clusters:
    """Returns the view on *cluster*, with the number of hops to each of *aliases*.

    *properties* are those of the client, such as its policy.
    """
    [line] = _query(cluster, properties, mode="clusters", aliases=",".join(aliases))
    return Clusters(
        upstream_clusters=tuple(line["upstream_clusters"]),
        heartbeat_topics=tuple(line["heartbeat_topics"]),
        checkpoint_topics=tuple(line["checkpoint_topics"]),
        remote_topics=tuple(line["remote_topics"]),
        hops=line["hops"],
    )


def heartbeats(cluster: JavaEndpoint, topic: str = "heartbeats") -> list[JavaHeartbeat]:
    """Returns the heartbeats of *topic* in order. Raises HarnessError if Java cannot read one of them."""
    return [JavaHeartbeat(**line) for line in _query(cluster, None, mode="heartbeats", topic=topic)]


def translated_offsets(
    cluster: JavaEndpoint, source: str, group: str, *, properties: Mapping[str, str] | None = None
) -> dict[tuple[str, int], tuple[int, str]]:
    """Calls RemoteClusterUtils.translateOffsets.

    Returns offset and metadata of *group* of *source* by target partition.
    """
    lines = _query(cluster, properties, mode="offsets", source=source, group=group)
    return {(line["topic"], line["partition"]): (line["offset"], line["metadata"]) for line in lines}


def _query(
    cluster: JavaEndpoint, properties: Mapping[str, str] | None, **options: str
) -> list[dict[str, Any]]:
    stem = f"mirror-query-{next(_calls)}"
    client = cluster.java_client("INTERNAL") | dict(properties or {})
    file = write_properties(cluster.home / f"{stem}.properties", client)
    command = java_command(
        "MirrorQuery",
        f"client={file}",
        *(f"{name}={value}" for name, value in options.items()),
        log=cluster.home / f"{stem}.log",
        version=VERSION,
        heap_mib=128,
        jvm_options=QUICK_JVM,
    )
    process = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_WAIT_S, check=False)
    if process.returncode:
        raise HarnessError(f"MirrorQuery {options} failed:\n{process.stderr[-2000:]}")
    return [json.loads(line) for line in process.stdout.splitlines()]
