"""Which topics of the source a flow copies, and why.

`MirrorSourceConnector.shouldReplicateTopic`: what the filter admits, or heartbeats, but neither internal topics nor what
has come from the target already. The cycle rule is that of Kafka 4.4: a topic that already bears the source's own alias
is refused too, since its copy would bear it twice. One rule is ours: what flows keep their books in is never copied.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from mirrorflow_replicator.flow.patterns import compile_patterns
from mirrorflow_replicator.flow.policy import ReplicationPolicy
from mirrorflow_replicator.flow.transforms import Naming, Transforms

# A name of 249 characters cannot have been through more clusters than it has separators.
HOPS_MAX = 250
# Named with dots by Connect's worker and by us, whatever `replication.policy.separator` says, so that with another one
# Java leaves them to `topics.exclude`, which a user may have replaced. A policy that keeps names would then write one
# flow's positions, or its producer identity, into the topic of another.
_BOOKS = re.compile(r"mm2-(?:configs|offsets|status|identity)\..+\.internal", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a topic is copied; `why` is half a sentence for a human."""

    selected: bool
    why: str


class TopicSelection:
    """The decision for one flow. Raises InvalidSettingError for an expression that is none.

    *admits* is the user's own filter, instead of *include* and *exclude*. *naming* is the policy's, if it is not given.
    """

    def __init__(
        self,
        *,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        policy: ReplicationPolicy,
        source_alias: str,
        target_alias: str,
        heartbeats: bool,
        admits: Callable[[str], bool] | None = None,
        naming: Naming | None = None,
    ) -> None:
        self._include = compile_patterns("topics", include)
        self._exclude = compile_patterns("topics.exclude", exclude)
        self._policy = policy
        self._naming = naming or Naming(policy, source_alias, Transforms())
        self._source_alias = source_alias
        self._target_alias = target_alias
        self._heartbeats = heartbeats
        self._admits = admits

    def selects(self, topic: str) -> bool:
        """Whether *topic* of the source is copied."""
        return self.decide(topic).selected

    def why(self, topic: str) -> str:
        """Why *topic* is copied, or is not."""
        return self.decide(topic).why

    def target_topic(self, topic: str) -> str:
        """The name of the copy."""
        return self._naming.target_topic(topic)

    def obstacle(self, topic: str) -> str:
        """Why *topic*, which is selected, has no place on the target; "" if it has one."""
        return self._naming.obstacle(topic)

    def decide(self, topic: str) -> Decision:
        """Both answers at once."""
        if self._policy.is_internal_topic(topic) or _BOOKS.fullmatch(topic):
            return Decision(selected=False, why="it is an internal topic")
        cycle = self._cycle(topic)
        if cycle:
            return Decision(selected=False, why=cycle)
        dropped_by = self._naming.route(topic).dropped_by
        if dropped_by:
            return Decision(selected=False, why=f"{dropped_by} drops its records")
        filtered = self._filter(topic)
        if not filtered.selected and self._heartbeats and self._policy.is_heartbeats_topic(topic):
            return Decision(selected=True, why="it holds heartbeats")
        return filtered

    def _filter(self, topic: str) -> Decision:
        if self._admits is not None:
            admitted = self._admits(topic)
            return Decision(
                selected=admitted, why=f"the topic filter {'admits' if admitted else 'refuses'} it"
            )
        if self._include is None or not self._include.fullmatch(topic):
            return Decision(selected=False, why="`topics` does not match it")
        if self._exclude is not None and self._exclude.fullmatch(topic):
            return Decision(selected=False, why="`topics.exclude` matches it")
        return Decision(selected=True, why="`topics` matches it")

    def _cycle(self, topic: str) -> str:
        name = topic
        for _ in range(HOPS_MAX):
            source = self._policy.topic_source(name)
            if source is None:
                return ""
            if source == self._target_alias:
                return f"it came from the target, {self._target_alias}"
            upstream = self._policy.upstream_topic(name)
            # A policy that leaves names alone calls every topic the source's own; there it says nothing.
            if upstream is None or upstream == name:
                return ""
            if source == self._source_alias:
                return f"its name says that it was copied from the source, {self._source_alias}, before"
            name = upstream
        return "its name goes through more clusters than a name can"
