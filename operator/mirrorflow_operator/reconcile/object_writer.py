"""Apply and prune, two steps of a pass: writes planned objects that differ (`plan.drift`), and deletes those that are not planned.

An object costs at most one write. One that is already as planned is not written, and one without a MirrorFlow
owner is not overwritten. Each write carries the uid and resourceVersion of the object it was decided for, so
the API server refuses the write of an operator whose cache is out of date. Before the first apply, the object is
read by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_operator.api.spec import API_VERSION, KIND
from mirrorflow_operator.cluster.cache import ClusterCache, ObjectId
from mirrorflow_operator.cluster.client import CONFIG_MAP, DEPLOYMENT, JOB, Client, kind_of
from mirrorflow_operator.cluster.event_publisher import EventPublisher
from mirrorflow_operator.cluster.observed_objects import (
    CONTENT_HASH,
    CachedChild,
    cached_child,
    content_of,
    owner_uid,
)
from mirrorflow_operator.errors import (
    BrokenError,
    ForbiddenError,
    NameConflictError,
    OperatorError,
    RejectedError,
)
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan.drift import Object, content_hash, matches
from mirrorflow_operator.plan.names import CONNECTOR_LABEL
from mirrorflow_operator.plan.pod_sharing import host_of_each
from mirrorflow_operator.plan.rollouts import reasons_to_roll
from mirrorflow_operator.reconcile.desired_state import DesiredState
from mirrorflow_operator.reconcile.observe import ObservedFlow
from mirrorflow_operator.status.admission import Resource

# Errors that the user can fix: their message goes into the status. All others are transient.
_USER_FACING_ERRORS: Final = (NameConflictError, ForbiddenError, RejectedError, BrokenError)
SETTLED_MAX: Final = 10_000  # a forgotten entry costs one apply that changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The objects that a step wrote or deleted, and the error that ended it, if the user can fix it."""

    children: tuple[CachedChild, ...] = ()
    bodies: tuple[Mapping[str, Any], ...] = ()  # applied objects, as the API server returned them
    failure: OperatorError | None = None


@dataclass(slots=True, kw_only=True)
class ObjectWriter:
    """Writes the objects of flows, with an Event for each write that a user should know of.

    Where the stored object differs from the plan after an apply (a mutating webhook), remembers the stored
    content, so that the next pass does not write it again.
    """

    client: Client
    cache: ClusterCache
    events: EventPublisher
    metrics: Metrics
    _settled: dict[ObjectId, tuple[str, str]] = field(default_factory=dict)

    async def apply(self, desired: DesiredState, observed: ObservedFlow) -> Written:
        """Writes the objects that differ. Raises OperatorError for an error that only time can fix."""
        resource = observed.resource
        if observed.unreadable:
            return Written(failure=ForbiddenError(f"namespace {resource.namespace}", observed.unreadable))
        children: list[CachedChild] = []
        bodies: list[Object] = []
        created: list[str] = []
        failure: OperatorError | None = None
        try:
            for one in desired.to_apply:
                found = observed.children.get(id_of(one))
                body = await self._apply(resource, one)
                if body is None:
                    continue
                bodies.append(body)
                children.append(cached_child(kind_of(one), body))
                if one["kind"] == DEPLOYMENT.name and found is None:
                    created.append(one["metadata"]["name"])
                event = event_of_write(one, found, desired.objects, observed.children)
                if event is not None:
                    await self.events.publish(resource, *event)
        except _USER_FACING_ERRORS as error:
            failure = error
        if created and failure is None:
            await self.events.publish(resource, "Created", f"Deployments {', '.join(created)}.")
        return Written(children=tuple(children), bodies=tuple(bodies), failure=failure)

    async def prune(self, desired: DesiredState, observed: ObservedFlow, applied: Written) -> Written:
        """Deletes managed objects that are not planned, unless *applied* failed. Raises as `apply` does."""
        if desired.inputs is None or applied.failure is not None:
            return Written(failure=applied.failure)
        children: list[CachedChild] = []
        planned = {*map(id_of, desired.objects)}
        host_of = {kind.value: host.value for kind, host in host_of_each(desired.pods).items()}
        try:
            for child in observed.children.values():
                if child.id in planned or not _is_prunable(child, desired, observed.resource):
                    continue
                if await self._prune(child):
                    children.append(child)
                    await self.events.publish(observed.resource, *event_of_removal(child, host_of))
        except _USER_FACING_ERRORS as error:
            return Written(children=tuple(children), failure=error)
        return Written(children=tuple(children))

    async def _apply(self, resource: Resource, planned: Object) -> Object | None:
        """Returns the object as written, or None if it already was as planned.

        Raises NameConflictError where an object of that name has no MirrorFlow owner, ApiServerError where a
        request fails.
        """
        wanted, kind = with_owner(planned, resource), kind_of(planned)
        metadata = wanted["metadata"]
        live = self.cache.children(resource.key).get(id_of(planned))
        if live is not None and self._is_as_planned(wanted, live):
            return None
        if live is None:
            live = await self._read_by_name(wanted)
        if live is not None:
            metadata["uid"], metadata["resourceVersion"] = live.uid, live.resource_version
        # A first apply is not forced: another writer may have created the object since it was read, and its
        # fields must stay.
        response = await self.client.apply(kind, wanted, force=live is not None)
        self.metrics.api_writes.labels(verb="apply", kind=kind.plural).inc()
        self.cache.put(kind, response)
        made = cached_child(kind, response)
        self._settled.pop(made.id, None)
        if not matches(made.content(), content_of(wanted)):
            if len(self._settled) >= SETTLED_MAX:
                self._settled.clear()
            self._settled[made.id] = (made.content_hash, made.digest)
        return response

    async def _prune(self, child: CachedChild) -> bool:
        """Deletes *child* if it still exists."""
        live = self.cache.children((child.namespace, child.flow)).get(child.id)
        if live is None or live.uid != child.uid or live.deleting:
            return False
        await self.client.delete(child.kind, child.namespace, child.name, uid=child.uid)
        self.metrics.api_writes.labels(verb="delete", kind=child.kind.plural).inc()
        self._settled.pop(child.id, None)
        return True

    def _is_as_planned(self, wanted: Object, live: CachedChild) -> bool:
        if live.content_hash != wanted["metadata"]["annotations"][CONTENT_HASH]:
            return False
        if self._settled.get(live.id) == (live.content_hash, live.digest):
            return True
        return matches(live.content(), content_of(wanted))

    async def _read_by_name(self, wanted: Object) -> CachedChild | None:
        """Returns the object of that name that the cache lacks: None, or one that lost its flow label.

        Raises NameConflictError where it has no MirrorFlow owner.
        """
        kind, metadata = kind_of(wanted), wanted["metadata"]
        selector = f"metadata.name={metadata['name']}"
        async for _, bodies in self.client.chunks(kind, metadata["namespace"], fields=selector):
            for body in bodies:
                if not owner_uid(body):
                    raise NameConflictError(kind.name, metadata["namespace"], metadata["name"])
                return cached_child(kind, body)
        return None


def with_owner(planned: Object, resource: Resource) -> Object:
    """Returns *planned* with its owner reference and its content hash, which a later release compares."""
    metadata = planned["metadata"]
    return {
        **planned,
        "metadata": {
            **metadata,
            "annotations": {**metadata.get("annotations", {}), CONTENT_HASH: content_hash(planned)},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": resource.name,
                    "uid": resource.uid,
                    "controller": True,
                    # True needs RBAC permission on the finalizers of MirrorFlows, and delays deletions.
                    "blockOwnerDeletion": False,
                }
            ],
        },
    }


def _is_prunable(child: CachedChild, desired: DesiredState, resource: Resource) -> bool:
    if child.deleting or child.owner_uid != resource.uid or child.name in desired.postponed:
        return False
    if child.kind is JOB and child.name in desired.due_jobs.runs.kept:
        return False
    # The admission policy would refuse to delete an unmanaged object, which would fail the whole pass.
    return child.is_managed()


def id_of(planned: Object) -> ObjectId:
    """Returns kind, namespace and name."""
    return planned["kind"], planned["metadata"]["namespace"], planned["metadata"]["name"]


def event_of_write(
    planned_object: Object,
    existing: CachedChild | None,
    all_planned: Sequence[Object],
    before: Mapping[ObjectId, CachedChild],
) -> tuple[str, str] | None:
    """Returns reason and note of the Event for writing *planned_object*, or None if it needs no Event.

    *existing* is the object before the write, *before* holds all objects of the flow before the pass.
    """
    name = planned_object["metadata"]["name"]
    if planned_object["kind"] == JOB.name and existing is None:
        return "Started", f"Job {name}."
    if planned_object["kind"] != DEPLOYMENT.name or existing is None:
        return None
    why = _rollout_reasons(planned_object, all_planned, before)
    if why:
        return "Rolling", f"Replacing the pods of {name}: {', '.join(why)}."
    count = planned_object["spec"]["replicas"]
    if existing.content()["spec"].get("replicas") != count:
        return "Scaled", f"Scaled {name} to {count} replicas."
    return None


def _rollout_reasons(
    deployment: Object, planned: Sequence[Object], before: Mapping[ObjectId, CachedChild]
) -> tuple[str, ...]:
    _, namespace, name = id_of(deployment)
    files = (CONFIG_MAP.name, namespace, name)
    old, old_files = before.get((DEPLOYMENT.name, namespace, name)), before.get(files)
    if old is None:
        return ()
    new_files = next(one for one in planned if id_of(one) == files)
    return reasons_to_roll(
        old.content(),
        deployment,
        old_files.content().get("data", {}) if old_files is not None else {},
        new_files["data"],
    )


def event_of_removal(child: CachedChild, host_of: Mapping[str, str]) -> tuple[str, str]:
    """Returns reason and note of the Event for deleting *child*.

    *host_of* maps each planned connector to the connector whose pod it runs in, both by name.
    """
    connector = child.content()["metadata"]["labels"].get(CONNECTOR_LABEL, "")
    host = host_of.get(connector, connector)
    why = "the flow no longer needs it" if host == connector else f"{connector} runs in the pod of {host}"
    return "Removed", f"{child.kind.name} {child.name}: {why}."
