"""Converts a Java flow into the MirrorFlow that continues where it stopped; a pure function.

Everything that offsets and names depend on is kept: aliases, connector names, offsets topic, policy,
separator. Fields are written only where they differ from the resource's defaults, some of which differ from
MM2's.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mirrorflow_cli.convert_connectors import connectors
from mirrorflow_cli.convert_parts import CHECKPOINT, SOURCE, ConversionFindings, JavaCluster, JavaFlow
from mirrorflow_core.java.duration import parse_instant_ms
from mirrorflow_core.java.property_reader import PropertyReader, read_list
from mirrorflow_core.naming.default_exclusions import CONFIG_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE
from mirrorflow_operator.api.spec import API_VERSION, KIND, NAME_MAX
from mirrorflow_replicator.config.topic_config_rules import config_exceptions

_POLICIES = {
    # Strimzi's class is older than Kafka's and names topics in the same way.
    "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy": "Identity",
    "org.apache.kafka.connect.mirror.IdentityReplicationPolicy": "Identity",
    "IdentityReplicationPolicy": "Identity",
    "org.apache.kafka.connect.mirror.DefaultReplicationPolicy": "Prefix",
    "DefaultReplicationPolicy": "Prefix",
}
_EMPTY_SEPARATOR = (
    "with IdentityReplicationPolicy an empty separator changes the names of MM2's internal topics alone; they are called "
    "mm2-offset-syncs.B.internal and A.checkpoints.internal from now on, and groups are translated from what is copied then"
)
_NO_PLACE = "the resource has no field for a class of one's own"


def document(flow: JavaFlow, findings: ConversionFindings) -> dict[str, Any]:
    """Returns the MirrorFlow of *flow*, not yet validated by the resource's own rules."""
    own = dict(flow.connectors[SOURCE])
    checkpoint = dict(flow.connectors.get(CHECKPOINT, own))
    topics, factor = _topics(flow, own, findings)
    spec: dict[str, Any] = {
        "state": "Paused" if own.get("mirrorflow.state", "").strip().lower() == "paused" else flow.state,
        "source": _cluster(flow.source, own=("source.", "isolation.level", "auto.offset.reset")),
        "target": _cluster(flow.target),
        "topics": topics,
        "groups": _groups(flow, checkpoint, findings),
        "takeOverFrom": _list(own.get("mirrorflow.takeover.from", "")),
        "isolationLevel": _isolation(flow, own),
        "offsetSyncs": {"location": own.get("offset-syncs.topic.location", "source").strip().capitalize()},
        "heartbeats": {"emitTo": list(flow.emit_to)},
        "limits": _limits(own),
        "connectors": connectors(flow, findings, replication_factor=factor),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": flow_name(flow.name)},
        "spec": {key: value for key, value in spec.items() if value and value != _DEFAULTS.get(key)},
    }


_DEFAULTS = {
    "state": "Running",
    "isolationLevel": "ReadUncommitted",
    "offsetSyncs": {"location": "Target"},
    "heartbeats": {"emitTo": ["Target", "Source"]},
}


def flow_name(text: str) -> str:
    """Returns *text* as a Kubernetes name: `us-west->B` becomes us-west-to-b."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.replace("->", "-to-").lower()).strip("-")
    return plain[:NAME_MAX].strip("-") or "flow"


def _cluster(cluster: JavaCluster, *, own: tuple[str, ...] = ()) -> dict[str, Any]:
    said = {f"consumer.{key}" for key in own}
    config = {key: value for key, value in cluster.clients.items() if key not in said}
    return {**cluster.document, **({"config": config} if config else {})}


def _topics(
    flow: JavaFlow, own: Mapping[str, str], findings: ConversionFindings
) -> tuple[dict[str, Any], int]:
    written = own.get("replication.factor", "2").strip()
    factor = int(written) if re.fullmatch(r"-?\d+", written) else -2
    policy = own.get("replication.policy.class", "DefaultReplicationPolicy").strip()
    if policy not in _POLICIES:
        findings.lose(flow.name, "replication.policy.class", f"{policy}: {_NO_PLACE}", refused=True)
    naming = {
        "policy": _POLICIES.get(policy, "Prefix"),
        "separator": own.get("replication.policy.separator", ".").strip(),
    }
    if naming["policy"] == "Identity" and not naming["separator"]:
        naming["separator"] = "."
        findings.lose(flow.name, "replication.policy.separator", _EMPTY_SEPARATOR)
    parts: dict[str, Any] = {
        "include": _list(own.get("topics", ".*")),
        "exclude": _beyond(flow, "topics.exclude", own, TOPICS_EXCLUDE, findings),
        "naming": {key: value for key, value in naming.items() if value not in {"Prefix", "."}},
        "startFrom": _start(flow, own, findings),
        "onSourceLoss": own.get("mirrorflow.source.loss.policy", "fail").strip().capitalize(),
        "replicationFactor": factor if factor != -2 else written,
        "configs": _configs(flow, own, findings),
        "acls": {key: value for key, value in {"sync": _sync(own, "acls")}.items() if value != "Off"},
    }
    plain = {"onSourceLoss": "Fail", "include": [".*"], "replicationFactor": -1}
    # Keep an empty `include`: validation refuses it, but leaving it out would copy every topic.
    kept = {
        key: value
        for key, value in parts.items()
        if (value or key == "include") and value != plain.get(key, {})
    }
    return kept, factor


def _configs(flow: JavaFlow, own: Mapping[str, str], findings: ConversionFindings) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "sync": _sync(own, "configs"),
        "exclude": _beyond(flow, "config.properties.exclude", own, CONFIG_EXCLUDE, findings),
        "exceptions": [
            {"topics": [topics], "exclude": [settings]}
            for topics, settings in config_exceptions(PropertyReader(own))
        ],
    }
    return {key: value for key, value in parts.items() if value and value != "Apply"}


def _sync(own: Mapping[str, str], what: str) -> str:
    if not _flag(own, f"sync.topic.{what}.enabled", default=True):
        return "Off"
    return "Report" if _flag(own, f"mirrorflow.sync.topic.{what}.report.only", default=False) else "Apply"


def _groups(flow: JavaFlow, own: Mapping[str, str], findings: ConversionFindings) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "include": _list(own.get("groups", ".*")),
        "exclude": _beyond(flow, "groups.exclude", own, GROUPS_EXCLUDE, findings),
        "syncOffsets": _flag(own, "sync.group.offsets.enabled", default=False),
    }
    plain = {"include": [".*"], "exclude": [], "syncOffsets": True}
    return {key: value for key, value in parts.items() if value != plain[key]}


def _start(flow: JavaFlow, own: Mapping[str, str], findings: ConversionFindings) -> dict[str, str]:
    key = "mirrorflow.start.from"
    reset = "auto.offset.reset"
    written = own.get(key) or flow.source.clients.get(f"consumer.{reset}") or "earliest"
    position = written.strip().lower()
    if position.startswith("timestamp:"):
        try:
            moment = datetime.fromtimestamp(parse_instant_ms(written.partition(":")[2]) / 1000, tz=UTC)
        except ValueError as error:
            findings.lose(flow.name, key, str(error), refused=True)
            return {}
        # Kafka's timestamps have millisecond precision.
        return {
            "position": "Timestamp",
            "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
    if position in {"earliest", "latest"}:
        return {"position": "Latest"} if position == "latest" else {}
    findings.lose(
        flow.name,
        key if key in own else f"source.consumer.{reset}",
        f"{position} is counted back from each start, and startFrom knows moments only; set spec.topics.startFrom, or"
        " topics that were never copied are copied from their beginning",
    )
    return {}


def _isolation(flow: JavaFlow, own: Mapping[str, str]) -> str:
    key = "isolation.level"
    written = flow.source.clients.get(f"consumer.{key}") or own.get(f"consumer.{key}", "read_uncommitted")
    return "ReadCommitted" if written.strip().lower() == "read_committed" else "ReadUncommitted"


def _limits(own: Mapping[str, str]) -> dict[str, str]:
    rate = own.get("mirrorflow.bytes.per.second", "").strip().removesuffix("B")
    return {"bytesPerSecond": rate.replace(" ", "")} if rate else {}


def _beyond(
    flow: JavaFlow, key: str, own: Mapping[str, str], always: tuple[str, ...], findings: ConversionFindings
) -> list[str]:
    """Returns the exclusions beyond MM2's default list, which the resource always adds."""
    if key not in own:
        return []
    written = _list(own[key])
    missing = [pattern for pattern in always if pattern not in written]
    if missing:
        findings.lose(
            flow.name,
            key,
            f"it replaces MM2's own list, which the resource always adds: {', '.join(missing)} stay left out",
        )
    return [pattern for pattern in written if pattern not in always]


def _list(text: str) -> list[str]:
    return list(dict.fromkeys(read_list(text)))


def _flag(own: Mapping[str, str], key: str, *, default: bool) -> bool:
    return own.get(key, str(default)).strip().lower() == "true"
