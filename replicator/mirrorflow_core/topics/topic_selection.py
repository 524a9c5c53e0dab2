"""Decides which topics of the source a flow copies, and why.

Follows `MirrorSourceConnector.shouldReplicateTopic`: a flow copies topics that the filter selects, and
heartbeats, but neither internal topics nor topics that came from the target. The cycle rule is that of Kafka
4.4: a topic that already has the source's own alias is refused too, because its copy would have the alias
twice. One rule is MirrorFlow's own: internal topics of flows and Connect workers are never copied.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Collection

from mirrorflow_core.java.patterns import compile_patterns, literal_name, meant_by_glob
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.replication_policy import HEARTBEATS, is_worker_topic
from mirrorflow_core.transforms import TopicTransforms

# A topic name has at most 249 characters, so it cannot contain more separators, and hops, than this.
HOPS_MAX = 250
REASONS_MAX = 3
# Names and topics that are compared for a hint, 0.1 s: a list of a thousand names and ten thousand topics take 40 s, in which
# the process answers nothing.
COMPARED_MAX = 25_000
SIMILARITY_MIN = 0.75  # one letter of four may differ; a lower value matches unrelated names


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDecision:
    """Whether a topic is copied; `why` is a clause for users."""

    selected: bool
    why: str


class TopicSelection:
    """Selects the topics of one flow.

    The constructor raises InvalidSettingError for an invalid expression, and any method for one that takes
    too long. *admits* is the user's own filter; it replaces *include* and *exclude*.
    """

    def __init__(
        self,
        *,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        naming: TopicTransforms,
        target_alias: str,
        heartbeats: bool,
        admits: Callable[[str], bool] | None = None,
    ) -> None:
        self._patterns = include
        self._include = compile_patterns("topics", include)
        self._exclude = compile_patterns("topics.exclude", exclude)
        self._naming, self._policy, self._source_alias = naming, naming.policy, naming.source_alias
        self._target_alias = target_alias
        self._heartbeats = heartbeats
        self._admits = admits
        self._given = (include, exclude, self._naming, target_alias, heartbeats, admits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicSelection) and self._given == other._given

    def __hash__(self) -> int:
        return hash(self._given)

    @property
    def prefix(self) -> str:
        """What the policy puts before the names of copies; "" if it keeps names."""
        return self._policy.remote_topic(self._source_alias, "")

    @property
    def renames(self) -> bool:
        """Whether transforms rename copies."""
        return self._naming.transforms.renames

    @property
    def keeps_names(self) -> bool:
        """Whether each copy has the name of its topic."""
        return self._naming.keeps_names

    def selects_copy_of(self, topic: str) -> bool:
        """Returns whether the copy of *topic* would be copied as well, if it were on the source."""
        return self.selects(self.target_topic(topic))

    def copies(self, topic: str) -> bool:
        """Returns whether *topic* is selected and can have a copy."""
        return self.selects(topic) and not self.obstacle(topic)

    def selects(self, topic: str) -> bool:
        """Returns whether *topic* of the source is copied."""
        return self.decide(topic).selected

    def why(self, topic: str) -> str:
        """Returns why *topic* is copied or not."""
        return self.decide(topic).why

    def target_topic(self, topic: str) -> str:
        """Returns the name of the copy."""
        return self._naming.target_topic(topic)

    def obstacle(self, topic: str) -> str | None:
        """Returns why the selected *topic* cannot have a copy on the target; None if it can."""
        return self._naming.obstacle(topic)

    def decide(self, topic: str) -> TopicDecision:
        """Returns whether *topic* is copied, and why."""
        if self._policy.is_internal_topic(topic) or is_worker_topic(topic):
            return TopicDecision(selected=False, why="it is an internal topic")
        cycle = self._cycle(topic)
        if cycle is not None:
            return TopicDecision(selected=False, why=cycle)
        dropped_by = self._naming.route(topic).dropped_by
        if dropped_by is not None:
            return TopicDecision(selected=False, why=f"{dropped_by} drops its records")
        filtered = self._filter(topic)
        if not filtered.selected and self._heartbeats and self._policy.is_heartbeats_topic(topic):
            return TopicDecision(selected=True, why="it holds heartbeats")
        return filtered

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that `topics` selects by name, not by an expression."""
        if self._admits is not None:
            return ()
        return tuple(name for pattern in self._patterns if (name := literal_name(pattern)))

    @property
    def never_copied(self) -> tuple[str, ...]:
        """A sentence for each topic that `topics` has by name and that can never be copied."""
        return tuple(
            f"`topics` has {name}, which is never copied: {decision.why}."
            for name in self.named
            if not (decision := self.decide(name)).selected
        )

    def of_own_alias(self, topics: Collection[str]) -> str | None:
        """Returns a sentence if *topics* are not copied for the source's own alias in their names, else None."""
        own = [topic for topic in sorted(topics) if self._is_of_own_alias(topic)]
        if not own:
            return None
        more = f" and {len(own) - 1} more" if len(own) > 1 else ""
        return (
            f"Topics whose names begin with the source's own alias are taken for copies that came back, and not copied: "
            f"{own[0]}{more}. MM2 up to Kafka 4.3 copies them as {self._policy.remote_topic(self._source_alias, own[0])}; "
            "rename them, or give the source another alias."
        )

    def _is_of_own_alias(self, topic: str) -> bool:
        return (
            self._policy.topic_source(topic) == self._source_alias
            and self._policy.upstream_topic(topic) not in {None, topic}
            and not self.selects(topic)
            and not self._policy.is_internal_topic(topic)
            and not self._policy.is_heartbeats_topic(topic)
            and self._filter(topic).selected
        )

    def nothing_selected(self, topics: Collection[str]) -> str | None:
        """Returns a sentence if none of the source's *topics* except heartbeats is copied, else None."""
        data = [
            topic
            for topic in sorted(topics)
            if not self._policy.is_internal_topic(topic) and not self._policy.is_heartbeats_topic(topic)
        ]
        # `orders.heartbeats` may be a user's own topic; so it counts if the filter selects it.
        named_alike = [
            topic for topic in topics if self._policy.is_heartbeats_topic(topic) and topic != HEARTBEATS
        ]
        if any(map(self.selects, data)) or any(
            self._filter(topic).selected and self.selects(topic) for topic in named_alike
        ):
            return None
        opening = f"No topic of {self._source_alias} is selected"
        if not data:
            return f"{opening}: it has none, or Describe on them is not granted."
        reasons = Counter(self.why(topic) for topic in data)
        counts = "; ".join(f"{count} are not, as {why}" for why, count in reasons.most_common(REASONS_MAX))
        return f"{opening}. Of {len(data)} topics {counts}.{self._meant(data)}"

    def _meant(self, topics: Collection[str]) -> str:
        """Returns a hint: the expression for what looks like a shell's pattern, or the topic with the closest name."""
        for pattern in self._patterns:
            if (meant := meant_by_glob(pattern)) is not None:
                return f" `topics` has {pattern}: is {meant} meant?"
        for pattern in self._patterns[: max(1, COMPARED_MAX // max(1, len(topics)))]:
            for name in difflib.get_close_matches(pattern, topics, n=1, cutoff=SIMILARITY_MIN):
                return f" `topics` has {pattern}: is {name} meant?"
        return " There may be others, if Describe on them is not granted."

    def _filter(self, topic: str) -> TopicDecision:
        if self._admits is not None:
            admitted = self._admits(topic)
            return TopicDecision(
                selected=admitted, why=f"the topic filter {'admits' if admitted else 'refuses'} it"
            )
        if not self._include.matches(topic):
            return TopicDecision(selected=False, why="`topics` does not match it")
        if self._exclude.matches(topic):
            return TopicDecision(selected=False, why="`topics.exclude` matches it")
        return TopicDecision(selected=True, why="`topics` matches it")

    def _cycle(self, topic: str) -> str | None:
        """Returns a clause why a copy of *topic* would come back to where it is from; None if it would not."""
        name = topic
        for _ in range(HOPS_MAX):
            source = self._policy.topic_source(name)
            if source is None:
                return None
            if source == self._target_alias:
                return f"it came from the target, {self._target_alias}"
            upstream = self._policy.upstream_topic(name)
            # A policy that keeps names reports the source for every topic, which is no sign of a cycle.
            if upstream is None or upstream == name:
                return None
            if source == self._source_alias:
                return f"its name says that it was copied from the source, {self._source_alias}, before"
            name = upstream
        return "its name goes through more clusters than a name can"
