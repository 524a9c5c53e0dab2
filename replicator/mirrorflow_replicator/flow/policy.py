"""How topics are named on the target, and which names mean what.

DefaultReplicationPolicy (`<alias><separator><topic>`) and IdentityReplicationPolicy (names unchanged) with the results
of Kafka 4.x for every name, traps included: under the default policy a local topic `orders.v1` looks as if it came from
a cluster `orders`. Internal topics follow KIP-1074. A policy of the user's own needs the methods of `ReplicationPolicy`.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mirrorflow_replicator.settings import PolicyKind, PolicySettings

_HEARTBEATS = "heartbeats"
_INTERNAL_SEPARATOR = "."


@runtime_checkable
class ReplicationPolicy(Protocol):
    """What MM2's `ReplicationPolicy` offers; None where Java has null."""

    def remote_topic(self, alias: str, topic: str) -> str:
        """The name on the target of *topic* of cluster *alias*."""

    def topic_source(self, topic: str) -> str | None:
        """The alias of the cluster that *topic* was copied from; None for a local topic."""

    def upstream_topic(self, topic: str) -> str | None:
        """The name that *topic* has one hop closer to its origin; None for a local topic."""

    def original_topic(self, topic: str) -> str:
        """The name of *topic* where it was first written."""

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Whether *topic* holds heartbeats, of any cluster."""

    def is_internal_topic(self, topic: str) -> bool:
        """Whether *topic* is Kafka's or MM2's own, never to be copied."""

    def checkpoints_topic(self, alias: str) -> str:
        """The name of the topic with the checkpoints of flow *alias* -> here."""

    def offset_syncs_topic(self, alias: str) -> str:
        """The name of the topic with the offset syncs with cluster *alias*."""

    def heartbeats_topic(self) -> str:
        """The name of the topic that heartbeats are written to."""


@dataclass(frozen=True, slots=True)
class DefaultPolicy:
    """DefaultReplicationPolicy. `internal_separator` is of internal topics (KIP-949)."""

    separator: str = "."
    internal_separator: str = "."

    def remote_topic(self, alias: str, topic: str) -> str:
        """`alias.topic`."""
        return alias + self.separator + topic

    def topic_source(self, topic: str) -> str | None:
        """What stands before the first separator, as Java's `split` sees it: nothing but separators behind is nothing."""
        parts = topic.split(self.separator)
        while parts and not parts[-1]:
            parts.pop()
        return parts[0] if len(parts) > 1 else None

    def upstream_topic(self, topic: str) -> str | None:
        """What stands behind the first separator."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def original_topic(self, topic: str) -> str:
        """All sources stripped."""
        while (upstream := self.upstream_topic(topic)) is not None:
            topic = upstream
        return topic

    def is_heartbeats_topic(self, topic: str) -> bool:
        """`heartbeats`, behind any number of aliases."""
        return self.original_topic(topic) == _HEARTBEATS

    def is_internal_topic(self, topic: str) -> bool:
        """As since Kafka 4.0: a user's own `orders.internal` is an ordinary topic."""
        if topic.startswith(("__", ".")):
            return True
        suffix = f"{self.internal_separator}internal"
        return (topic.startswith("mm2") and topic.endswith(suffix)) or topic.endswith(
            f"{self.internal_separator}checkpoints{suffix}"
        )

    def checkpoints_topic(self, alias: str) -> str:
        """`alias.checkpoints.internal`."""
        return self.internal_separator.join((alias, "checkpoints", "internal"))

    def offset_syncs_topic(self, alias: str) -> str:
        """`mm2-offset-syncs.alias.internal`."""
        return self.internal_separator.join(("mm2-offset-syncs", alias, "internal"))

    def heartbeats_topic(self) -> str:
        """`heartbeats`, for every policy."""
        return _HEARTBEATS


@dataclass(frozen=True, slots=True)
class IdentityPolicy:
    """IdentityReplicationPolicy: topics keep their names, but for heartbeats, which would meet their own copies."""

    source_alias: str
    default: DefaultPolicy = DefaultPolicy()

    def remote_topic(self, alias: str, topic: str) -> str:
        """*topic* itself."""
        return self.default.remote_topic(alias, topic) if self._looks_like_heartbeats(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        """The flow's own source, for every topic; None if the alias is not known."""
        if self._looks_like_heartbeats(topic):
            return self.default.topic_source(topic)
        return self.source_alias or None

    def upstream_topic(self, topic: str) -> str | None:
        """*topic* itself."""
        return self.default.upstream_topic(topic) if self._looks_like_heartbeats(topic) else topic

    def original_topic(self, topic: str) -> str:
        """*topic* itself."""
        return self.default.original_topic(topic) if self._looks_like_heartbeats(topic) else topic

    def is_heartbeats_topic(self, topic: str) -> bool:
        """As the default policy."""
        return self.default.is_heartbeats_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        """As the default policy."""
        return self.default.is_internal_topic(topic)

    def checkpoints_topic(self, alias: str) -> str:
        """As the default policy."""
        return self.default.checkpoints_topic(alias)

    def offset_syncs_topic(self, alias: str) -> str:
        """As the default policy."""
        return self.default.offset_syncs_topic(alias)

    def heartbeats_topic(self) -> str:
        """As the default policy."""
        return self.default.heartbeats_topic()

    def _looks_like_heartbeats(self, topic: str) -> bool:
        return topic.endswith(_HEARTBEATS)


def remote_prefix(settings: PolicySettings, alias: str, prefix: str) -> str | None:
    """What the remote names of exactly those topics of *alias* begin with that begin with *prefix*.

    None for a policy of the user's own, which may do anything. Under IDENTITY heartbeats are an exception.
    """
    match settings.kind:
        case PolicyKind.DEFAULT:
            return alias + settings.separator + prefix
        case PolicyKind.IDENTITY:
            return prefix
        case PolicyKind.CUSTOM:
            return None


def make_policy(settings: PolicySettings) -> ReplicationPolicy:
    """The built-in policy of *settings*; a CUSTOM one is imported by `connect.plugins`, and is a ValueError here."""
    default = DefaultPolicy(
        settings.separator,
        settings.separator if settings.internal_separator_enabled else _INTERNAL_SEPARATOR,
    )
    match settings.kind:
        case PolicyKind.DEFAULT:
            return default
        case PolicyKind.IDENTITY:
            return IdentityPolicy(settings.source_alias, default)
        case PolicyKind.CUSTOM:
            raise ValueError(f"the policy {settings.custom} is not built in")
