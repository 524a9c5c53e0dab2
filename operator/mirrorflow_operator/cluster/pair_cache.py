"""Caches MirrorPairs and Switchovers, and says which flows a switchover has started or ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirrorflow_operator.api.load import without_newer_fields
from mirrorflow_operator.api.mirror_pair import PAIR_KIND, MirrorPair, parse_pair
from mirrorflow_operator.api.pair_status import PairStatus, SwitchoverStatus, parse_object_status
from mirrorflow_operator.api.spec import API_VERSION
from mirrorflow_operator.api.switchover import SWITCHOVER_KIND, parse_switchover
from mirrorflow_operator.cluster.observed_objects import created_s
from mirrorflow_operator.errors import FieldError, InvalidSpecError
from mirrorflow_operator.status.observation import Key
from mirrorflow_operator.status.pair_observation import PairKey, PairResource, SwitchoverResource

Body = Mapping[str, Any]


@dataclass(slots=True)
class PairCache:
    """The pairs and switchovers of the watched namespaces; each change returns what is to be reconciled."""

    pairs: dict[PairKey, PairResource] = field(default_factory=dict)
    switchovers: dict[Key, SwitchoverResource] = field(default_factory=dict)

    def switchovers_of(self, key: PairKey) -> tuple[SwitchoverResource, ...]:
        """Returns the switchovers of a pair, oldest first."""
        own = [
            switchover
            for switchover in self.switchovers.values()
            if (switchover.namespace, switchover.pair) == key[:2]
        ]
        return tuple(sorted(own, key=lambda switchover: switchover.seniority))

    def known_keys(self) -> frozenset[PairKey]:
        """Returns the keys of all pairs, and of those that Switchovers name."""
        named = {PairKey(switchover.namespace, switchover.pair) for switchover in self.switchovers.values()}
        return frozenset(named | self.pairs.keys())

    def is_started(self, flow: Key) -> bool:
        """Whether a switchover has started the flow, so that it runs even if its spec says Stopped."""
        namespace, name = flow
        return any(
            key.namespace == namespace and pair.status.runs == name for key, pair in self.pairs.items()
        )

    def stopping_pair(self, flow: Key) -> str | None:
        """Returns the pair of which a switchover has ended the flow, so that it has no work; None if none has."""
        namespace, name = flow
        return next(
            (
                resource.name
                for key, resource in self.pairs.items()
                if key.namespace == namespace and name in _ended_flows_of(resource)
            ),
            None,
        )

    def pairs_of(self, flow: Key) -> frozenset[PairKey]:
        """Returns the pairs that name the flow."""
        namespace, name = flow
        return frozenset(
            key
            for key, resource in self.pairs.items()
            if key.namespace == namespace and name in resource.flows.values()
        )

    def put_pair(self, body: Body) -> frozenset[Key | PairKey]:
        new = observed_pair(body)
        key = PairKey(new.namespace, new.name)
        old = self.pairs.get(key)
        self.pairs[key] = new
        return frozenset({key}) | self._started_changes(old, new)

    def put_switchover(self, body: Body) -> frozenset[Key | PairKey]:
        new = observed_switchover(body)
        self.switchovers[new.namespace, new.name] = new
        return frozenset({PairKey(new.namespace, new.pair)})

    def remove_pair(self, namespace: str, name: str) -> frozenset[Key | PairKey]:
        key = PairKey(namespace, name)
        return frozenset({key}) | self._started_changes(self.pairs.pop(key, None), None)

    def remove_switchover(self, namespace: str, name: str) -> frozenset[Key | PairKey]:
        gone = self.switchovers.pop((namespace, name), None)
        return frozenset() if gone is None else frozenset({PairKey(namespace, gone.pair)})

    def _started_changes(
        self, old: PairResource | None, new: PairResource | None
    ) -> frozenset[Key | PairKey]:
        """Returns the flows that were started or ended."""
        before, after = _decided(old), _decided(new)
        return frozenset[Key | PairKey](flow for flow, _ in before ^ after)


def _decided(resource: PairResource | None) -> frozenset[tuple[Key, bool]]:
    """Returns the flows of which the pair's switchovers have decided whether they run, with that decision."""
    if resource is None:
        return frozenset()
    decided = {(name, False) for name in _ended_flows_of(resource)}
    if resource.status.runs:
        decided.add((resource.status.runs, True))
    return frozenset(((resource.namespace, name), runs) for name, runs in decided)


def _ended_flows_of(resource: PairResource) -> set[str]:
    """Returns the flow of the member that is not active; none before the first switchover."""
    active, flows = resource.status.active, resource.flows
    if not resource.status.epoch or active not in flows:
        return set()
    return {flow for alias, flow in flows.items() if alias != active} - {flows[active]}


def observed_pair(body: Body) -> PairResource:
    """Returns the facts of a MirrorPair."""
    metadata, pair = body["metadata"], None
    errors: tuple[FieldError, ...] = ()
    newer_fields: tuple[FieldError, ...] = ()
    try:
        document, newer_fields = without_newer_fields(_document(body, PAIR_KIND), MirrorPair)
        pair = parse_pair(document)
    except InvalidSpecError as error:
        errors = error.errors
    return PairResource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        resource_version=metadata["resourceVersion"],
        flows=_named_flows((body.get("spec") or {}).get("members")),
        pair=pair,
        errors=errors,
        newer_fields=newer_fields,
        status=parse_object_status(body.get("status"), PairStatus),
    )


def _named_flows(members: Any) -> dict[str, str]:
    """Returns the flow of each member by its alias; those that cannot be read are left out."""
    named = members.items() if isinstance(members, Mapping) else ()
    flows = ((str(alias), member.get("flow")) for alias, member in named if isinstance(member, Mapping))
    return {alias: flow for alias, flow in flows if isinstance(flow, str)}


def observed_switchover(body: Body) -> SwitchoverResource:
    """Returns the facts of a Switchover. A field of a newer CRD may say what must not be done, so it makes the spec invalid."""
    metadata, switchover = body["metadata"], None
    errors: tuple[FieldError, ...] = ()
    try:
        switchover = parse_switchover(_document(body, SWITCHOVER_KIND))
    except InvalidSpecError as error:
        errors = error.errors
    return SwitchoverResource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        resource_version=metadata["resourceVersion"],
        pair=str((body.get("spec") or {}).get("pair", "")),
        created_s=created_s(body),
        is_deleting="deletionTimestamp" in metadata,
        switchover=switchover,
        errors=errors,
        status=parse_object_status(body.get("status"), SwitchoverStatus),
    )


def _document(body: Body, kind: str) -> dict[str, Any]:
    metadata = body["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": body.get("spec") or {},
    }
