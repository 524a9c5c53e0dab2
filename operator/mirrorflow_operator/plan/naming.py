"""Which topics a flow copies, and under which name, as far as its file says.

The results of MM2's policies and of MirrorSourceConnector.shouldReplicateTopic, as the replicator has them in `flow.policy` and
`flow.selection`, which the operator does not import; a test holds both to each other. A filter class of one's own is not known
here: the lists count.
"""

import re
from dataclasses import dataclass

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.topics import NamingPolicy
from mirrorflow_operator.plan.properties import TOPICS_EXCLUDE
from mirrorflow_operator.plan.renaming import Renaming, renaming_of

_HEARTBEATS = "heartbeats"
_BOOKS = re.compile(r"mm2-(?:configs|offsets|status|identity)\..+\.internal", re.DOTALL)
_INTERNAL_SEPARATOR_KEY = "replication.policy.internal.topic.separator.enabled"
_HEARTBEATS_KEY = "heartbeats.replication.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """The naming and the selection of one flow."""

    source: str
    target: str
    separator: str
    keeps_names: bool
    include: re.Pattern[str] | None
    exclude: re.Pattern[str] | None
    internal_separator: str
    heartbeats: bool
    renaming: Renaming

    def target_topic(self, topic: str) -> str:
        """What *topic* is called on the target."""
        name = self._by_policy(topic)
        renamed = self._renamed(topic, name)
        return name if renamed is None else renamed

    def _by_policy(self, topic: str) -> str:
        if self.keeps_names and not topic.endswith(_HEARTBEATS):
            return topic
        return self.source + self.separator + topic

    def copies(self, topic: str) -> bool:
        """Whether the flow copies *topic* of its source."""
        if self._is_internal(topic) or self._is_cycle(topic):
            return False
        if not self._has_place(topic):
            return False
        if self._matches(topic):
            return True
        return self.heartbeats and self._is_heartbeats(topic)

    def _has_place(self, topic: str) -> bool:
        """Whether transformations leave it one."""
        by_policy = self._by_policy(topic)
        name = self._renamed(topic, by_policy)
        return name == by_policy or not (
            name is None or self._is_internal(name, books=False) or self._is_heartbeats(name)
        )

    def _renamed(self, topic: str, name: str) -> str | None:
        # Heartbeats keep their name: hops and ages are read from it.
        return self.renaming.name(name, renames=not self._is_heartbeats(topic))

    def _matches(self, topic: str) -> bool:
        if self.include is None or not self.include.fullmatch(topic):
            return False
        return self.exclude is None or not self.exclude.fullmatch(topic)

    def _is_internal(self, topic: str, *, books: bool = True) -> bool:
        if topic.startswith(("__", ".")) or (books and _BOOKS.fullmatch(topic)):
            return True
        suffix = f"{self.internal_separator}internal"
        checkpoints = f"{self.internal_separator}checkpoints{suffix}"
        return (topic.startswith("mm2") and topic.endswith(suffix)) or topic.endswith(checkpoints)

    def _is_heartbeats(self, topic: str) -> bool:
        while (parted := self._parted(topic)) is not None:
            topic = parted[1]
        return topic == _HEARTBEATS

    def _is_cycle(self, topic: str) -> bool:
        """Whether its name says that it came from the target, or twice from the source."""
        if self.keeps_names and not topic.endswith(_HEARTBEATS):
            # A policy that keeps names calls every topic the source's own.
            return self.source == self.target
        while (parted := self._parted(topic)) is not None:
            if parted[0] in {self.source, self.target}:
                return True
            topic = parted[1]
            if self.keeps_names and not topic.endswith(_HEARTBEATS):
                return False
        return False

    def _parted(self, topic: str) -> tuple[str, str] | None:
        """Alias and rest; nothing but separators behind is nothing, as Java's `split` sees it."""
        head, found, rest = topic.partition(self.separator)
        if not found or not rest.replace(self.separator, ""):
            return None
        return head, rest


def naming_of(flow: MirrorFlow) -> Naming:
    """The naming of *flow*, which has passed `api.validate`."""
    topics, config = flow.spec.topics, flow.spec.connectors.source.config
    separator = topics.naming.separator
    apart = config.get(_INTERNAL_SEPARATOR_KEY, "true").strip().lower() == "false"
    return Naming(
        source=flow.spec.source.alias,
        target=flow.spec.target.alias,
        separator=separator,
        keeps_names=topics.naming.policy is NamingPolicy.IDENTITY,
        include=_any_of(topics.include),
        exclude=_any_of((*topics.exclude, *TOPICS_EXCLUDE)),
        internal_separator="." if apart else separator,
        heartbeats=config.get(_HEARTBEATS_KEY, "true").strip().lower() != "false",
        renaming=renaming_of(config),
    )


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(patterns), re.ASCII) if patterns else None
