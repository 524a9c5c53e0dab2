"""Decides which consumer groups a flow translates and which target groups it may write to.

Follows Java's DefaultGroupFilter and `listConsumerGroups`. A consumer group is a group of type classic or
consumer (KIP-848) with protocol type `consumer`, or with none if it only stores offsets. Share groups
(KIP-932) and streams groups (KIP-1071) keep their progress elsewhere, so offsets written to them would have
no effect.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from mirrorflow_core.naming.patterns import compile_patterns

_CONSUMER_TYPES = frozenset({"", "classic", "consumer"})  # "": a broker that reports no types has no others
_CONSUMER_PROTOCOLS = frozenset({"", "consumer"})
# A classic coordinator reports "Dead" for a group that it does not know.
_IDLE_STATES = frozenset({"empty", "dead"})
_NAMED_TYPES = {
    "share": "it is a share group, whose progress is not a committed offset",
    "streams": "it is a streams group, whose tasks keep state besides offsets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group as a cluster lists it; "" for fields that its brokers are too old to report."""

    name: str
    protocol_type: str = ""  # consumer, connect, share ...; "" if only offsets were committed
    state: str = ""  # as Kafka names it: Empty, Stable, ...
    type: str = ""  # as Kafka names it: Classic, Consumer, Share, Streams

    @property
    def is_consumer_group(self) -> bool:
        """Whether the group's committed offsets are its progress."""
        return self.type.lower() in _CONSUMER_TYPES and self.protocol_type in _CONSUMER_PROTOCOLS

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members."""
        return self.state.lower() in _IDLE_STATES

    @property
    def why_not(self) -> str:
        """A clause why offsets of this group type cannot be translated; "" where that needs no reason."""
        return _NAMED_TYPES.get(self.type.lower(), "")


class Writable(Enum):
    """Whether the flow may commit offsets for a group of the target."""

    YES = "yes"  # without members, or not existing
    ACTIVE = "active"  # it has members, which commit their own offsets
    OTHER_KIND = "other-kind"  # not a consumer group


def writable(group: Group | None) -> Writable:
    """Return whether offsets may be committed for the target's *group*; None: the target does not know it."""
    if group is None:
        return Writable.YES
    if not group.is_consumer_group:
        return Writable.OTHER_KIND
    return Writable.YES if group.is_idle else Writable.ACTIVE


class GroupSelection:
    """Selects the groups of a flow. Raises InvalidSettingError where a pattern is not a regular expression.

    *admits* is the user's own filter; it replaces *include* and *exclude*.
    """

    def __init__(
        self,
        *,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        admits: Callable[[str], bool] | None = None,
    ) -> None:
        self._include = compile_patterns("groups", include)
        self._exclude = compile_patterns("groups.exclude", exclude)
        self._admits = admits

    def selects(self, group: str) -> bool:
        """Return whether the flow translates the offsets of *group*."""
        if self._admits is not None:
            return self._admits(group)
        if self._include is None or not self._include.matches(group):
            return False
        return self._exclude is None or not self._exclude.matches(group)
