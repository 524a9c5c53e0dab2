"""Consumer groups as values: which a flow looks at, and which may be written to.

Java's DefaultGroupFilter and `listConsumerGroups`, whose rule of what a consumer group is came with KIP-848: classic and
consumer groups whose protocol is consumers', or none for who only stores offsets. Share groups (KIP-932) and streams
groups (KIP-1071) keep their progress elsewhere, so that offsets written to them would say nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from mirrorflow_replicator.flow.patterns import compile_patterns

_CONSUMER_TYPES = frozenset(
    {"", "classic", "consumer"}
)  # "": a broker that does not tell types has no others
_CONSUMER_PROTOCOLS = frozenset({"", "consumer"})
# "Dead" is what a classic coordinator says of a group that it does not know.
_IDLE_STATES = frozenset({"empty", "dead"})
_NAMED_TYPES = {
    "share": "it is a share group, whose progress is not a committed offset",
    "streams": "it is a streams group, whose tasks keep state besides offsets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group as a cluster lists it; "" for what its brokers are too old to tell."""

    name: str
    protocol_type: str = ""  # consumer, connect, share ...; "" where only offsets were committed
    state: str = ""  # Kafka's word: Empty, Stable, ...
    type: str = ""  # Kafka's word: Classic, Consumer, Share, Streams

    @property
    def is_consumer_group(self) -> bool:
        """Whether its committed offsets are its progress."""
        return self.type.lower() in _CONSUMER_TYPES and self.protocol_type in _CONSUMER_PROTOCOLS

    @property
    def is_idle(self) -> bool:
        """Whether it has no members."""
        return self.state.lower() in _IDLE_STATES

    @property
    def why_not(self) -> str:
        """Half a sentence why offsets of a group of this kind cannot be translated; "" where nobody would expect it."""
        return _NAMED_TYPES.get(self.type.lower(), "")


class Writable(Enum):
    """Whether a group of the target may be given offsets."""

    YES = "yes"  # without members, or not there at all
    ACTIVE = "active"  # its members say where it stands
    OTHER_KIND = "other-kind"  # no consumer group


def writable(group: Group | None) -> Writable:
    """What may be done with the target's *group*; None: the target does not know it."""
    if group is None:
        return Writable.YES
    if not group.is_consumer_group:
        return Writable.OTHER_KIND
    return Writable.YES if group.is_idle else Writable.ACTIVE


class GroupSelection:
    """Which groups a flow looks at. Raises InvalidSettingError for an expression that is none.

    *admits* is the user's own filter, instead of *include* and *exclude*.
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
        """Whether the offsets of *group* are translated."""
        if self._admits is not None:
            return self._admits(group)
        if self._include is None or not self._include.fullmatch(group):
            return False
        return self._exclude is None or not self._exclude.fullmatch(group)
