"""Flows looked at together: do two of them write to one topic, or does a record come back for ever? Pure.

What is decided
1. Which endpoints are one cluster: the same cluster id where it is known, else a common address. Aliases prove nothing: two
   files may call one cluster by two names, which is how loops arise that MM2's naming cannot see.
2. Each topic is followed through the flows, by the names it gets. A way that comes back to a cluster is a loop, whatever the
   topic is called by then; a topic that two flows write to is a collision.
3. Two flows that call their sources alike on one target are a collision whatever they copy: positions and identity there are
   kept by that name.
Where topics of a source are known, these are followed; else samples of what the files say (`samples`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from mirrorflow_operator.plan.naming import Naming


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A cluster as one flow names it; `cluster_id` is "" and `topics` None where it was not asked."""

    alias: str
    addresses: frozenset[str]
    cluster_id: str = ""
    topics: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What matters here of a flow."""

    flow: str
    source: Endpoint
    target: Endpoint
    naming: Naming


class ConflictKind(Enum):
    """What goes wrong."""

    LOOP = "loop"  # a record comes back; source and target that are one cluster are the shortest
    ALIAS = "alias"  # two sources of one alias on one target
    COLLISION = "collision"  # two flows write to one topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Flows that must not run together; `sentence` names them, the topics and the clusters."""

    kind: ConflictKind
    flows: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class _Step:
    """A topic on a cluster (its number), and the route that brought it there; None for where it was written."""

    cluster: int
    topic: str
    by: int | None = None


@dataclass(slots=True, kw_only=True)
class _Search:
    routes: Sequence[Route]
    sides: Sequence[tuple[int, int]]  # the clusters of each route
    names: Sequence[str]  # of the clusters
    seen: set[tuple[int, str]] = field(default_factory=set)
    # Target topic -> each route that writes it, with the topic it is a copy of.
    writers: dict[tuple[int, str], dict[int, str]] = field(default_factory=dict)
    loops: dict[frozenset[int], str] = field(default_factory=dict)
    leaving: dict[int, list[int]] = field(default_factory=dict)  # cluster -> the routes that read it

    def __post_init__(self) -> None:
        for at, (source, _) in enumerate(self.sides):
            self.leaving.setdefault(source, []).append(at)

    def follow(self, way: tuple[_Step, ...]) -> None:
        """Where the topic at the end of *way* goes from there."""
        here = way[-1]
        if (here.cluster, here.topic) in self.seen:
            return
        self.seen.add((here.cluster, here.topic))
        for at in self.leaving.get(here.cluster, ()):
            route, (_, target) = self.routes[at], self.sides[at]
            if not route.naming.copies(here.topic):
                continue
            topic = route.naming.target_topic(here.topic)
            self.writers.setdefault((target, topic), {})[at] = here.topic
            there = (*way, _Step(target, topic, at))
            first = _begin_of_loop(there)
            if first is None:
                self.follow(there)
            else:
                self._note_loop(there[first:])

    def _note_loop(self, way: tuple[_Step, ...]) -> None:
        routes = [step.by for step in way[1:] if step.by is not None]
        path = f"{way[0].topic} on {self.names[way[0].cluster]}" + "".join(
            f" -> {step.topic} on {self.names[step.cluster]} ({self.routes[step.by].flow})"
            for step in way[1:]
            if step.by is not None
        )
        self.loops.setdefault(frozenset(routes), path)


def conflicts(routes: Sequence[Route], samples: Sequence[str]) -> tuple[Conflict, ...]:
    """Every loop and collision among *routes*, loops first; *samples* are topics of clusters that were not asked."""
    numbers, names = _clusters([end for route in routes for end in (route.source, route.target)])
    sides = [(numbers[2 * at], numbers[2 * at + 1]) for at in range(len(routes))]
    search = _Search(routes=routes, sides=sides, names=names)
    for cluster in dict.fromkeys(source for source, _ in sides):
        for topic in _topics(cluster, routes, sides, samples):
            search.follow((_Step(cluster, topic),))
    return (
        *_same(routes, sides, names),
        *_loops(search),
        *_aliases(routes, sides, names),
        *_collisions(search),
    )


def _begin_of_loop(way: tuple[_Step, ...]) -> int | None:
    """Where *way* was on the cluster that its last step reaches, under whatever name; None if it was not there.

    Where each cluster has one alias, MM2's naming refuses such a step; that of Kafka before 4.4 would go on for ever.
    """
    return next((at for at, step in enumerate(way[:-1]) if step.cluster == way[-1].cluster), None)


def _topics(
    cluster: int, routes: Sequence[Route], sides: Sequence[tuple[int, int]], samples: Sequence[str]
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
    """The number of each endpoint's cluster, and what each cluster is called."""
    groups: list[list[int]] = []
    for at in range(len(ends)):
        joined = [group for group in groups if any(_is_same(ends[at], ends[other]) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([number for group in joined for number in group] + [at])
    groups.sort(key=min)
    numbers = [0] * len(ends)
    for number, group in enumerate(groups):
        for at in group:
            numbers[at] = number
    names = ["/".join(dict.fromkeys(ends[at].alias for at in sorted(group))) for group in groups]
    return numbers, names


def _is_same(one: Endpoint, other: Endpoint) -> bool:
    if one.cluster_id and other.cluster_id:
        return one.cluster_id == other.cluster_id
    return bool(one.addresses & other.addresses)


def _same(
    routes: Sequence[Route], sides: Sequence[tuple[int, int]], names: Sequence[str]
) -> Iterator[Conflict]:
    for route, (source, target) in zip(routes, sides, strict=True):
        if source == target:
            sentence = (
                f"Flow {route.flow}: its source and its target are one cluster, {names[source]}; name two."
            )
            yield Conflict(kind=ConflictKind.LOOP, flows=(route.flow,), sentence=sentence)


def _loops(search: _Search) -> Iterator[Conflict]:
    for routes, path in search.loops.items():
        flows = tuple(search.routes[at].flow for at in sorted(routes))
        what = "Flow {} makes a loop" if len(flows) == 1 else "Flows {} make a loop"
        yield Conflict(
            kind=ConflictKind.LOOP,
            flows=flows,
            sentence=f"{what.format(' and '.join(flows))}: {path}; leave these topics out of one of them, or call "
            "each cluster by one alias and let copies bear it.",
        )


def _aliases(
    routes: Sequence[Route], sides: Sequence[tuple[int, int]], names: Sequence[str]
) -> Iterator[Conflict]:
    for at, route in enumerate(routes):
        for before in range(at):
            other = routes[before]
            if sides[at][1] == sides[before][1] and route.source.alias == other.source.alias:
                yield Conflict(
                    kind=ConflictKind.ALIAS,
                    flows=(other.flow, route.flow),
                    sentence=f"Flows {other.flow} and {route.flow} both copy a source called {route.source.alias} to "
                    f"cluster {names[sides[at][1]]}, which keeps positions by that name; make one flow of them, or "
                    "give one source another alias.",
                )


def _collisions(search: _Search) -> Iterator[Conflict]:
    found: dict[tuple[int, ...], list[tuple[int, str]]] = {}
    for place, writers in search.writers.items():
        aliases = {search.routes[at].source.alias for at in writers}
        # Two that share an alias have been told of already.
        if len(writers) > 1 and len(aliases) == len(writers):
            found.setdefault(tuple(sorted(writers)), []).append(place)
    for routes, places in found.items():
        flows = tuple(search.routes[at].flow for at in routes)
        cluster, topic = places[0]
        origins = ", ".join(
            f"{search.writers[places[0]][at]} of {search.names[search.sides[at][0]]} ({search.routes[at].flow})"
            for at in routes
        )
        more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
        yield Conflict(
            kind=ConflictKind.COLLISION,
            flows=flows,
            sentence=f"Flows {' and '.join(flows)} both write to topic {topic}{more} of cluster {search.names[cluster]}: "
            f"{origins}; let one of them prefix its copies, or leave these topics out of one.",
        )
