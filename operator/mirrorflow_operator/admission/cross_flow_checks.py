"""Refuses flows that must not run together: loops, shared aliases and topics that two of them would write. Pure.

Of flows that conflict, the youngest is refused, so the running one continues; equal age is decided by name. The
same flows give the same refusals, in whatever order they arrived. A Stopped flow conflicts with none. A flow
whose spec can no longer be read keeps the last spec that could.

A changed flow is compared only with flows that share a cluster with it, directly or through others. The full
check runs only if their clusters form a cycle or two of them could write to one topic, so a thousand unrelated
flows cost nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from mirrorflow_core.topics.topic_selection import TopicSelection
from mirrorflow_operator.admission.flow_conflicts import (
    Conflict,
    ConflictKind,
    Endpoint,
    FlowRoute,
    conflicts,
    samples,
)
from mirrorflow_operator.api.spec import ClusterSpec, MirrorFlow, State
from mirrorflow_operator.plan.names import topic_selection_of
from mirrorflow_operator.status.conditions import Problem, Reason
from mirrorflow_operator.status.observation import Key, Resource

_REASONS: Final = {
    ConflictKind.LOOP: Reason.LOOP_FOUND,
    ConflictKind.ALIAS: Reason.FLOW_EXISTS,
    ConflictKind.COLLISION: Reason.TOPIC_COLLISION,
}
# The most flows in one full check: its time grows with their square, and it blocks the operator. If there are
# more, only the oldest are checked; the others run unchecked.
FULL_CHECK_MAX: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConflictInputs:
    """The parts of a flow that can cause a conflict; a change of any other part needs no check."""

    key: Key
    created_s: float
    route: FlowRoute
    include: tuple[str, ...]

    @property
    def seniority(self) -> tuple[float, Key]:
        return self.created_s, self.key


@dataclass(slots=True, kw_only=True)
class CrossFlowChecks:
    """The flows that exist, and which of them are refused."""

    _flows: dict[Key, _ConflictInputs] = field(default_factory=dict)
    # The flows that name a cluster by this address or id.
    _by_identifier: dict[str, set[Key]] = field(default_factory=dict)
    _refusals: dict[Key, Problem] = field(default_factory=dict)

    def put(self, resource: Resource) -> frozenset[Key]:
        """Adds or updates *resource*; returns the keys of other flows whose refusal has changed."""
        if resource.flow is None:
            return frozenset()
        runs = resource.flow.spec.state is not State.STOPPED
        return self._replace(resource.key, _conflict_inputs(resource, resource.flow) if runs else None)

    def remove(self, key: Key) -> frozenset[Key]:
        """Removes a deleted flow; returns what `put` returns."""
        return self._replace(key, None)

    def refusal(self, key: Key) -> Problem | None:
        """Returns why the flow must not run; None: it may."""
        return self._refusals.get(key)

    def _replace(self, key: Key, new: _ConflictInputs | None) -> frozenset[Key]:
        old = self._flows.get(key)
        if old == new:
            return frozenset()
        connected = self._connected_flows(old)
        if old is not None:
            del self._flows[key]
            for identifier in _cluster_identifiers(old.route):
                self._by_identifier[identifier].discard(key)
                if not self._by_identifier[identifier]:
                    del self._by_identifier[identifier]
        if new is not None:
            self._flows[key] = new
            for identifier in _cluster_identifiers(new.route):
                self._by_identifier.setdefault(identifier, set()).add(key)
        connected |= self._connected_flows(new)
        before = {other: self._refusals.pop(other) for other in {*connected, key} if other in self._refusals}
        refusals = _refusals([self._flows[other] for other in connected if other in self._flows])
        self._refusals |= refusals
        return frozenset(
            other for other in connected if other != key and before.get(other) != refusals.get(other)
        )

    def _connected_flows(self, flow: _ConflictInputs | None) -> set[Key]:
        """Returns the flows that share a cluster with *flow*, directly or through other flows."""
        reached: set[Key] = set()
        identifiers, seen = list(() if flow is None else _cluster_identifiers(flow.route)), set[str]()
        while identifiers:
            identifier = identifiers.pop()
            if identifier in seen:
                continue
            seen.add(identifier)
            for key in self._by_identifier.get(identifier, set()) - reached:
                reached.add(key)
                identifiers.extend(_cluster_identifiers(self._flows[key].route))
        return reached


def _conflict_inputs(resource: Resource, flow: MirrorFlow) -> _ConflictInputs:
    ids = resource.status.cluster_ids
    # The ids belong to the addresses of the observed generation: a newer spec may name other clusters.
    known = ids is not None and resource.status.observed_generation == resource.generation
    source, target = (ids.source or None, ids.target or None) if ids is not None and known else (None, None)
    return _ConflictInputs(
        key=resource.key,
        created_s=resource.created_s,
        route=FlowRoute(
            flow="/".join(resource.key),
            source=_endpoint(flow.spec.source, resource.namespace, source),
            target=_endpoint(flow.spec.target, resource.namespace, target),
            naming=topic_selection_of(flow),
        ),
        include=flow.spec.topics.include,
    )


def _endpoint(cluster: ClusterSpec, namespace: str, cluster_id: str | None) -> Endpoint:
    addresses = frozenset(
        _address(bootstrap_server.lower(), namespace) for bootstrap_server in cluster.bootstrap_servers
    )
    return Endpoint(alias=cluster.alias, addresses=addresses, cluster_id=cluster_id)


def _address(address: str, namespace: str) -> str:
    """Returns the cluster-wide form; a host without a dot is a Service of the flow's own namespace."""
    host, _, port = address.rpartition(":")
    if "." not in host and not host.startswith("["):
        host = f"{host}.{namespace}.svc"
    return f"{host.removesuffix('.cluster.local')}:{port}"


def _cluster_identifiers(route: FlowRoute) -> Iterator[str]:
    for end in (route.source, route.target):
        yield from end.addresses
        if end.cluster_id is not None:
            yield f"id {end.cluster_id}"


def _refusals(flows: Sequence[_ConflictInputs]) -> dict[Key, Problem]:
    """Refuses the youngest flow of each conflict among *flows* until no conflict is left."""
    left = sorted(flows, key=lambda flow: flow.seniority)[:FULL_CHECK_MAX]
    refusals: dict[Key, Problem] = {}
    if not _needs_full_check([flow.route for flow in left]):
        return refusals
    names = samples(dict.fromkeys(pattern for flow in left for pattern in flow.include))
    # A pattern that is slow on a sample name is no reason to stop a flow: its connector checks real names.
    while conflicting := [
        conflict
        for conflict in conflicts([flow.route for flow in left], names)
        if conflict.kind is not ConflictKind.SLOW
    ]:
        refused = _youngest_of_each(left, conflicting)
        refusals |= refused
        left = [flow for flow in left if flow.key not in refused]
    return refusals


def _youngest_of_each(
    oldest_first: Sequence[_ConflictInputs], conflicts: Iterable[Conflict]
) -> dict[Key, Problem]:
    """Returns the youngest flow of each conflict whose other flows are all accepted."""
    conflicts_of: dict[str, list[Conflict]] = {}
    for conflict in conflicts:
        for name in conflict.flows:
            conflicts_of.setdefault(name, []).append(conflict)
    accepted: set[str] = set()
    refused: dict[Key, Problem] = {}
    for flow in oldest_first:
        name = flow.route.flow
        lost = next(
            (it for it in conflicts_of.get(name, ()) if accepted.issuperset({*it.flows} - {name})), None
        )
        if lost is None:
            accepted.add(name)
        else:
            message = f"{lost.sentence} This flow is the youngest of them and does not run."
            refused[flow.key] = Problem(_REASONS[lost.kind], message)
    return refused


def _needs_full_check(routes: Sequence[FlowRoute]) -> bool:
    """Whether clusters may form a cycle, or two routes into one cluster may name a topic alike.

    A cheap filter before the full check, so it errs towards True.
    """
    numbers = _cluster_numbers(routes)
    targets_of: dict[int, set[int]] = {}
    writers: dict[int, list[TopicSelection]] = {}
    for route in routes:
        source, target = (numbers[next(iter(end.addresses))] for end in (route.source, route.target))
        targets_of.setdefault(source, set()).add(target)
        writers.setdefault(target, []).append(route.naming)
    return _has_cycle(targets_of) or any(_may_collide(namings) for namings in writers.values())


def _cluster_numbers(routes: Iterable[FlowRoute]) -> Mapping[str, int]:
    """Numbers each address and cluster id; all of one cluster have the same number."""
    parents: dict[str, str] = {}

    def root(identifier: str) -> str:
        while (parent := parents.setdefault(identifier, identifier)) != identifier:
            parents[identifier] = parents[parent]
            identifier = parent
        return identifier

    for route in routes:
        for end in (route.source, route.target):
            first = root(next(iter(end.addresses)))
            for identifier in (*end.addresses, *([] if end.cluster_id is None else [f"id {end.cluster_id}"])):
                parents[root(identifier)] = first
    roots = {identifier: root(identifier) for identifier in list(parents)}
    numbers = {root: index for index, root in enumerate(dict.fromkeys(roots.values()))}
    return {identifier: numbers[key] for identifier, key in roots.items()}


def _has_cycle(targets_of: Mapping[int, set[int]]) -> bool:
    """Whether the graph has a cycle: removes clusters without outgoing routes until none is left."""
    left = {cluster: set(targets) for cluster, targets in targets_of.items()}
    while dead := {target for targets in left.values() for target in targets} - left.keys():
        left = {cluster: rest for cluster, targets in left.items() if (rest := targets - dead)}
    return bool(left)


def _may_collide(namings: Sequence[TopicSelection]) -> bool:
    if len(namings) < 2:
        return False
    prefixes = sorted(naming.prefix for naming in namings)
    return any(later.startswith(earlier) for earlier, later in pairwise(prefixes))
