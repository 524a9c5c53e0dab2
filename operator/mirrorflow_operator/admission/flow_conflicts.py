"""Finds loops and collisions among flows: records that return to a cluster, topics with two writers. Pure.

1. Two endpoints are one cluster if their cluster ids are equal or, where one is unknown, they share an address.
   Aliases prove nothing: two files may give one cluster two names, and MM2's naming cannot see such loops.
2. Each topic is followed through the flows by the names it gets. A path that returns to a cluster is a loop,
   whatever the topic is called by then. A topic that two flows write to is a collision.
3. Two flows to one target with equal source aliases conflict whatever they copy: their stored offsets and
   identity there are keyed by the alias.
The known topics of a source are followed; where they are unknown, sample names that their patterns match. Two
patterns overlap if a sample of one, or two samples joined, matches both. An overlap that is found is real, but
overlaps can be missed: samples do not cover all a pattern can match.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.pattern_syntax import SlowPatternError
from mirrorflow_core.java.patterns import JavaPattern
from mirrorflow_core.topics.topic_selection import TopicSelection

ANY = "any-topic"  # the sample for .*
# Pairs grow with the square of the patterns; this many names are checked in well under a second.
SAMPLES_MAX = 400
_SIMPLIFICATIONS = (
    (re.compile(r"\\([.\-_])"), r"\1"),
    (re.compile(r"\\d"), "1"),
    (re.compile(r"\\w"), "a"),
    (re.compile(r"\[([A-Za-z0-9])[^\]]*\]"), r"\1"),
    (re.compile(r"\(\?[:a-z!=<]*|[()^$]"), ""),
    (re.compile(r"\.\*"), ""),
    (re.compile(r"(?<!\\)\.\+"), "x"),
    (re.compile(r"[+*?]|\{[\d,]*\}"), ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A cluster as one flow names it; `cluster_id` and `topics` are None if the cluster was not queried."""

    alias: str
    addresses: frozenset[str]
    cluster_id: str | None = None
    topics: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRoute:
    """A flow's name, source, target and naming."""

    flow: str
    source: Endpoint
    target: Endpoint
    naming: TopicSelection


class ConflictKind(Enum):
    """The kind of a conflict between flows."""

    LOOP = "loop"  # a record returns to a cluster; the shortest loop has one cluster as source and target
    ALIAS = "alias"  # two sources have one alias on one target
    COLLISION = "collision"  # two flows write to one topic
    SLOW = "slow"  # a regular expression takes too long, so the flow cannot be checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Flows that must not run together; `sentence` names them, the topics and the clusters."""

    kind: ConflictKind
    flows: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class _Step:
    """A topic on a cluster (by number), and the route that copied it there; None where it originates."""

    cluster: int
    topic: str
    by: int | None = None


@dataclass(slots=True, kw_only=True)
class _TopicSearch:
    """Follows each topic through all routes, and records loops and the writers of each target topic."""

    routes: Sequence[FlowRoute]
    sides: Sequence[tuple[int, int]]  # cluster numbers of each route
    names: Sequence[str]  # cluster names
    seen: set[tuple[int, str]] = field(default_factory=set)
    # Target topic -> each route that writes it, with the source topic.
    writers: dict[tuple[int, str], dict[int, str]] = field(default_factory=dict)
    loops: dict[frozenset[int], str] = field(default_factory=dict)
    slow: dict[int, InvalidSettingError] = field(default_factory=dict)
    routes_from: dict[int, list[int]] = field(default_factory=dict)  # cluster -> the routes that read it

    def __post_init__(self) -> None:
        for index, (source, _) in enumerate(self.sides):
            self.routes_from.setdefault(source, []).append(index)

    def follow(self, steps: tuple[_Step, ...]) -> None:
        """Follows the topic at the end of *steps* through all routes from its cluster."""
        here = steps[-1]
        if (here.cluster, here.topic) in self.seen:
            return
        self.seen.add((here.cluster, here.topic))
        for index in self.routes_from.get(here.cluster, ()):
            if index in self.slow:
                continue
            route, (_, target) = self.routes[index], self.sides[index]
            try:
                topic = route.naming.target_topic(here.topic) if route.naming.copies(here.topic) else None
            except InvalidSettingError as error:
                self.slow.setdefault(index, error)
                continue
            if topic is None:
                continue
            self.writers.setdefault((target, topic), {})[index] = here.topic
            there = (*steps, _Step(target, topic, index))
            first = _loop_start(there)
            if first is None:
                self.follow(there)
            else:
                self._record_loop(there[first:])

    def _record_loop(self, steps: tuple[_Step, ...]) -> None:
        routes = [step.by for step in steps[1:] if step.by is not None]
        path = f"{steps[0].topic} on {self.names[steps[0].cluster]}" + "".join(
            f" -> {step.topic} on {self.names[step.cluster]} ({self.routes[step.by].flow})"
            for step in steps[1:]
            if step.by is not None
        )
        self.loops.setdefault(frozenset(routes), path)


def conflicts(routes: Sequence[FlowRoute], samples: Sequence[str]) -> tuple[Conflict, ...]:
    """Returns the conflicts among *routes*, loops first; *samples* represent topics that are not known."""
    numbers, names = _clusters([end for route in routes for end in (route.source, route.target)])
    sides = [(numbers[2 * index], numbers[2 * index + 1]) for index in range(len(routes))]
    search = _TopicSearch(routes=routes, sides=sides, names=names)
    for cluster in dict.fromkeys(source for source, _ in sides):
        for topic in _topics(cluster, routes, sides, samples):
            search.follow((_Step(cluster, topic),))
    return (
        *_single_cluster_conflicts(routes, sides, names),
        *_loop_conflicts(search),
        *_alias_conflicts(routes, sides, names),
        *_collision_conflicts(search),
        *_slow_conflicts(search),
    )


def _loop_start(steps: tuple[_Step, ...]) -> int | None:
    """Returns the index of the step to which the last of *steps* returns; None if it returns to none.

    Where each cluster has one alias, MM2's naming refuses such a step; that of Kafka before 4.4 would loop
    for ever. A flow within one cluster makes no loop as long as it does not select its own copies.
    """
    return next((index for index in range(len(steps) - 1) if _is_loop(steps[index:])), None)


def _is_loop(steps: tuple[_Step, ...]) -> bool:
    first, last = steps[0], steps[-1]
    if first.cluster != last.cluster:
        return False
    routes = [step.by for step in steps[1:]]
    leaves = any(step.cluster != first.cluster for step in steps)
    return leaves or first.topic == last.topic or len(set(routes)) < len(routes)


def _topics(
    cluster: int, routes: Sequence[FlowRoute], sides: Sequence[tuple[int, int]], samples: Sequence[str]
) -> Iterator[str]:
    ends = [
        end
        for route, numbers in zip(routes, sides, strict=True)
        for end, number in zip((route.source, route.target), numbers, strict=True)
        if number == cluster
    ]
    known = [end.topics for end in ends if end.topics is not None]
    yield from sorted(frozenset().union(*known)) if known else samples


def _clusters(ends: Sequence[Endpoint]) -> tuple[list[int], list[str]]:
    """Returns the number of each endpoint's cluster, and the name of each cluster."""
    groups: list[list[int]] = []
    for index in range(len(ends)):
        joined = [group for group in groups if any(_is_same(ends[index], ends[other]) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([number for group in joined for number in group] + [index])
    groups.sort(key=min)
    numbers = [0] * len(ends)
    for number, group in enumerate(groups):
        for index in group:
            numbers[index] = number
    names = ["/".join(dict.fromkeys(ends[index].alias for index in sorted(group))) for group in groups]
    return numbers, names


def _is_same(endpoint: Endpoint, other: Endpoint) -> bool:
    if endpoint.cluster_id is not None and other.cluster_id is not None:
        return endpoint.cluster_id == other.cluster_id
    return bool(endpoint.addresses & other.addresses)


def _single_cluster_conflicts(
    routes: Sequence[FlowRoute], sides: Sequence[tuple[int, int]], names: Sequence[str]
) -> Iterator[Conflict]:
    for route, (source, target) in zip(routes, sides, strict=True):
        if source == target and route.naming.keeps_names:
            sentence = (
                f"Flow {route.flow}: its source and its target are the same cluster, {names[source]}; name two clusters, or use "
                "naming policy Prefix."
            )
            yield Conflict(kind=ConflictKind.LOOP, flows=(route.flow,), sentence=sentence)


def _loop_conflicts(search: _TopicSearch) -> Iterator[Conflict]:
    for routes, path in search.loops.items():
        flows = tuple(search.routes[index].flow for index in sorted(routes))
        what = "Flow {} makes a loop" if len(flows) == 1 else "Flows {} make a loop"
        yield Conflict(
            kind=ConflictKind.LOOP,
            flows=flows,
            sentence=f"{what.format(' and '.join(flows))}: {path}; exclude these topics from one of the flows, or give each cluster one alias and use naming policy "
            "Prefix.",
        )


def _alias_conflicts(
    routes: Sequence[FlowRoute], sides: Sequence[tuple[int, int]], names: Sequence[str]
) -> Iterator[Conflict]:
    for index, route in enumerate(routes):
        for before in range(index):
            other = routes[before]
            if sides[index][1] == sides[before][1] and route.source.alias == other.source.alias:
                yield Conflict(
                    kind=ConflictKind.ALIAS,
                    flows=(other.flow, route.flow),
                    sentence=f"Flows {other.flow} and {route.flow} both copy a source with the alias {route.source.alias} to "
                    f"cluster {names[sides[index][1]]}, which stores positions by that alias; merge the flows, or "
                    "give one source another alias.",
                )


def _collision_conflicts(search: _TopicSearch) -> Iterator[Conflict]:
    by_writers: dict[tuple[int, ...], list[tuple[int, str]]] = {}
    for target_topic, writers in search.writers.items():
        aliases = {search.routes[index].source.alias for index in writers}
        # Flows that share an alias are reported by `_alias_conflicts` already.
        if len(writers) > 1 and len(aliases) == len(writers):
            by_writers.setdefault(tuple(sorted(writers)), []).append(target_topic)
    for routes, target_topics in by_writers.items():
        flows = tuple(search.routes[index].flow for index in routes)
        cluster, topic = target_topics[0]
        origins = ", ".join(
            f"{search.writers[cluster, topic][index]} of {search.names[search.sides[index][0]]} ({search.routes[index].flow})"
            for index in routes
        )
        more = f" (and {len(target_topics) - 1} more)" if len(target_topics) > 1 else ""
        yield Conflict(
            kind=ConflictKind.COLLISION,
            flows=flows,
            sentence=f"Flows {' and '.join(flows)} both write to topic {topic}{more} of cluster {search.names[cluster]}: "
            f"{origins}; use naming policy Prefix in one of them, or exclude these topics from one.",
        )


def _slow_conflicts(search: _TopicSearch) -> Iterator[Conflict]:
    for index, error in search.slow.items():
        flow = search.routes[index].flow
        yield Conflict(kind=ConflictKind.SLOW, flows=(flow,), sentence=f"Flow {flow}: {error}")


def samples(patterns: Iterable[str]) -> tuple[str, ...]:
    """Returns at most SAMPLES_MAX sample names for *patterns*, the simplest first."""
    single = list(dict.fromkeys(name for pattern in patterns for name in _samples_of(pattern)))
    pairs = (f"{first}{other}" for first, other in itertools.permutations(single, 2))
    return tuple(itertools.islice(dict.fromkeys((*single, *pairs, ANY)), SAMPLES_MAX))


def _samples_of(pattern: str) -> list[str]:
    expression = JavaPattern(pattern)
    names = []
    for alternative in pattern.strip("()").split("|"):
        name = alternative
        for part, plain in _SIMPLIFICATIONS:
            name = part.sub(plain, name)
        name = name or ANY
        try:
            if expression.matches(name):
                names.append(name)
        except SlowPatternError:
            continue  # a name that cannot be matched in time is no sample
    return names
