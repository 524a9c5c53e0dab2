"""Names topics on the target, and derives from a name which cluster and topic it came from; names flows.

DefaultReplicationPolicy (`<alias><separator><topic>`) and IdentityReplicationPolicy (names unchanged) return
the results of Kafka 4.x for every name, including pitfalls: under the default policy, a local topic
`orders.v1` seems to come from a cluster `orders`. Internal topics follow KIP-1074. A user's own policy must
implement `ReplicationPolicy`. The topics in which a worker stores its state have names that no policy changes.

The id by which a flow claims its source alias is its name. The same MirrorFlow may be applied to two Kubernetes clusters, and
each must notice the other: so the id of a flow that an operator runs has, after its name, the namespace and the Kubernetes
cluster: `orders@payments.<uid>`.
"""

import re
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, runtime_checkable

from mirrorflow_core.settings import PolicyKind, PolicySettings

_PLACE: Final = "@"  # neither names of MirrorFlows nor MM2's `A->B` have it
# Connect workers and MirrorFlow always name these with dots, whatever `replication.policy.separator` is. With
# another separator, Java relies on `topics.exclude`, which a user may have replaced. A policy that keeps
# names would then write one flow's stored offsets, or what it knows of itself, into the topic of another flow.
_WORKER_TOPIC = re.compile(
    r"mm2-(?:configs|offsets|status|claims|identity|offset-map)\..+\.internal", re.DOTALL
)
HEARTBEATS = "heartbeats"
_INTERNAL_SEPARATOR = "."


def flow_id(name: str, namespace: str, kubernetes_id: str | None) -> str:
    """Returns the id of flow *name* in a namespace; *kubernetes_id*: of the Kubernetes cluster, None if unknown."""
    place = namespace if kubernetes_id is None else f"{namespace}.{kubernetes_id}"
    return f"{name}{_PLACE}{place}"


def flow_name(id_: str) -> str:
    """Returns the name of the flow with this id, for labels of metrics and reports."""
    return id_.partition(_PLACE)[0]


def runs_elsewhere(id_: str, owner: str) -> bool:
    """Returns whether *owner* is the flow of the file with flow id *id_*, run by an operator."""
    return id_ == flow_name(owner) != owner


def worker_topic(store: Literal["offsets", "configs", "status"], source_alias: str) -> str:
    """Returns the name that MM2's dedicated mode gives to the topic of *store*."""
    return f"mm2-{store}.{source_alias}.internal"


def is_worker_topic(topic: str) -> bool:
    """Returns whether *topic* is a worker's, or holds what a flow knows of itself."""
    return _WORKER_TOPIC.fullmatch(topic) is not None


def is_alias_split(alias: str, separator: str) -> bool:
    """Returns whether MM2, which splits the name of a copy at the first separator, does not find *alias* in it."""
    return bool(separator) and separator in alias


def alias_split_problem(separator: str) -> str:
    """Returns what is wrong with an alias for which `is_alias_split` holds; its subject comes before it."""
    return f"contains the separator '{separator}', which ends the alias in a topic's name"


@runtime_checkable
class ReplicationPolicy(Protocol):
    """The interface of MM2's `ReplicationPolicy`; None where Java returns null."""

    def remote_topic(self, alias: str, topic: str) -> str:
        """Returns the target name for *topic* of cluster *alias*."""

    def topic_source(self, topic: str) -> str | None:
        """Returns the alias of the cluster that *topic* was copied from; None for a local topic."""

    def upstream_topic(self, topic: str) -> str | None:
        """Returns the name of *topic* one hop closer to its origin; None for a local topic."""

    def original_topic(self, topic: str) -> str:
        """Returns the name of *topic* on the cluster where it was first written."""

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Returns whether *topic* holds heartbeats, of any cluster."""

    def is_internal_topic(self, topic: str) -> bool:
        """Returns whether *topic* is internal to Kafka or MM2, and so never copied."""

    def checkpoints_topic(self, alias: str) -> str:
        """Returns the name of the checkpoints topic of the flow *alias* -> this cluster."""

    def offset_syncs_topic(self, alias: str) -> str:
        """Returns the name of the offset-syncs topic for cluster *alias*."""

    def heartbeats_topic(self) -> str:
        """Returns the name of the heartbeats topic."""


@dataclass(frozen=True, slots=True)
class DefaultPolicy:
    """DefaultReplicationPolicy. `internal_separator` applies to internal topics (KIP-949)."""

    separator: str = "."
    internal_separator: str = "."

    def remote_topic(self, alias: str, topic: str) -> str:
        """Returns `alias.topic`."""
        return alias + self.separator + topic

    def topic_source(self, topic: str) -> str | None:
        """Returns the part before the first separator; trailing empty parts do not count (Java's `split`)."""
        parts = topic.split(self.separator)
        while parts and not parts[-1]:
            parts.pop()
        return parts[0] if len(parts) > 1 else None

    def upstream_topic(self, topic: str) -> str | None:
        """Returns the part after the first separator."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def original_topic(self, topic: str) -> str:
        """Returns *topic* without any aliases."""
        while (upstream := self.upstream_topic(topic)) is not None:
            topic = upstream
        return topic

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Returns whether *topic* is `heartbeats` after any number of aliases."""
        return self.original_topic(topic) == HEARTBEATS

    def is_internal_topic(self, topic: str) -> bool:
        """Returns whether *topic* is internal; since Kafka 4.0, a user's own `orders.internal` is not."""
        if topic.startswith(("__", ".")):
            return True
        suffix = f"{self.internal_separator}internal"
        return (topic.startswith("mm2") and topic.endswith(suffix)) or topic.endswith(
            f"{self.internal_separator}checkpoints{suffix}"
        )

    def checkpoints_topic(self, alias: str) -> str:
        """Returns `alias.checkpoints.internal`."""
        return self.internal_separator.join((alias, "checkpoints", "internal"))

    def offset_syncs_topic(self, alias: str) -> str:
        """Returns `mm2-offset-syncs.alias.internal`."""
        return self.internal_separator.join(("mm2-offset-syncs", alias, "internal"))

    def heartbeats_topic(self) -> str:
        """Returns `heartbeats`, as every policy does."""
        return HEARTBEATS


@dataclass(frozen=True)  # with slots, Python before 3.14 does not find `super()`
class IdentityPolicy(DefaultPolicy):
    """IdentityReplicationPolicy: topics keep their names, except those of heartbeats, to avoid a collision."""

    source_alias: str = field(kw_only=True)

    def remote_topic(self, alias: str, topic: str) -> str:
        return super().remote_topic(alias, topic) if topic.endswith(HEARTBEATS) else topic

    def topic_source(self, topic: str) -> str | None:
        """Returns the flow's source for every topic; None if the alias is unknown."""
        return super().topic_source(topic) if topic.endswith(HEARTBEATS) else self.source_alias or None

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if topic.endswith(HEARTBEATS) else topic

    def original_topic(self, topic: str) -> str:
        return super().original_topic(topic) if topic.endswith(HEARTBEATS) else topic


def remote_prefix(settings: PolicySettings, alias: str, prefix: str) -> str | None:
    """Returns the prefix of the remote names of exactly those topics of *alias* that start with *prefix*.

    None for a user's own policy, which may return any name. Under IDENTITY, heartbeats are an exception.
    """
    match settings.kind:
        case PolicyKind.DEFAULT:
            return alias + settings.separator + prefix
        case PolicyKind.IDENTITY:
            return prefix
        case PolicyKind.CUSTOM:
            return None


def make_policy(settings: PolicySettings) -> ReplicationPolicy:
    """Returns the built-in policy of *settings*.

    With an empty separator only internal topics are called as in Java, without one: heartbeats need it, or
    no name would show where they came from. Raises ValueError for CUSTOM, which `config.plugins` imports.
    """
    separator = settings.separator or _INTERNAL_SEPARATOR
    internal = settings.separator if settings.internal_separator_enabled else _INTERNAL_SEPARATOR
    match settings.kind:
        case PolicyKind.DEFAULT:
            return DefaultPolicy(separator, internal)
        case PolicyKind.IDENTITY:
            return IdentityPolicy(separator, internal, source_alias=settings.source_alias)
        case PolicyKind.CUSTOM:
            raise ValueError(f"the policy {settings.custom} is not built in")
