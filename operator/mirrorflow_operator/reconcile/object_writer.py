"""Apply and prune, two steps of a pass: writes planned objects that differ (`plan.drift`), and deletes those that are not planned.

An object costs at most one write. One that is already as planned is not written, and one with another owner is
not overwritten. Each write carries the uid and resourceVersion of the object it was decided for, so
the API server refuses the write of an operator whose cache is out of date. Before the first apply, the object is
read by name.

Each object is written on its own: what is refused affects only the pods that need it. An object that can never be
accepted as it is planned is not sent again until the plan or the object in the cluster changes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_operator.api.spec import API_VERSION, KIND
from mirrorflow_operator.cluster.cache import ClusterCache, ObjectId
from mirrorflow_operator.cluster.client import (
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    SERVICE_ACCOUNT,
    SPARK_APPLICATION,
    SPARK_KINDS,
    Client,
    kind_of,
)
from mirrorflow_operator.cluster.event_publisher import EventPublisher
from mirrorflow_operator.cluster.observed_objects import (
    CONTENT_HASH,
    CachedChild,
    cached_child,
    content_of,
    owner_uid,
)
from mirrorflow_operator.errors import (
    ApiServerError,
    BrokenError,
    ForbiddenError,
    KindMissingError,
    NameConflictError,
    NotFoundError,
    OperatorError,
    RejectedError,
)
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan.drift import Object, content_hash, matches
from mirrorflow_operator.plan.names import CONNECTOR_LABEL, RUN_LABEL
from mirrorflow_operator.plan.pod_sharing import host_of_each
from mirrorflow_operator.plan.rollouts import reasons_to_roll
from mirrorflow_operator.plan.spark_applications import run_name_of
from mirrorflow_operator.reconcile.desired_state import DesiredState
from mirrorflow_operator.reconcile.observe import ObservedFlow
from mirrorflow_operator.status.observation import RefusedObject, Resource
from mirrorflow_operator.status.pins import FIELD_MANAGER

_LOG = logging.getLogger(__name__)
# Errors that the user can fix: their message goes into the status. All others are transient.
_USER_FACING_ERRORS: Final = (NameConflictError, KindMissingError, ForbiddenError, RejectedError, BrokenError)
SETTLED_MAX: Final = 10_000  # a forgotten entry costs one apply that changes nothing
# An object that was refused for its content is sent again after this time: a policy may have refused it, and nothing
# reports a changed policy.
REFUSED_AGAIN_S: Final = 300.0
_WORKLOADS: Final = frozenset({DEPLOYMENT, JOB, CRON_JOB, *SPARK_KINDS})
_UNTYPED: Final = "failed to create typed patch object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The objects that a step wrote or deleted, and those that the API server refused to.

    `failure`: an error of one of them that only a later attempt can show to be gone; None if there is none.
    """

    children: tuple[CachedChild, ...] = ()
    bodies: tuple[Mapping[str, Any], ...] = ()  # applied objects, as the API server returned them
    refused: tuple[RefusedObject, ...] = ()
    failure: OperatorError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """An object that the API server does not accept: as which plan, over which content, when and why."""

    content_hash: str
    live_digest: str
    at_s: float
    error: OperatorError

    def holds(self, content_hash: str, live_digest: str, now_s: float) -> bool:
        """Whether the same plan over the same content is still to be taken as refused."""
        is_same = (self.content_hash, self.live_digest) == (content_hash, live_digest)
        return is_same and 0 <= now_s - self.at_s < REFUSED_AGAIN_S


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
    _refused: dict[ObjectId, _Refusal] = field(default_factory=dict)

    async def apply(self, desired: DesiredState, observed: ObservedFlow) -> Written:
        """Writes the objects that differ. Raises OperatorError for an error that only time can fix."""
        resource = observed.resource
        if observed.unreadable:
            failure = ForbiddenError(f"namespace {resource.namespace}", observed.unreadable)
            return Written(
                refused=(RefusedObject(name="the flow's objects", message=str(failure)),), failure=failure
            )
        children: list[CachedChild] = []
        bodies: list[Object] = []
        created: list[str] = []
        refused: dict[ObjectId, RefusedObject] = {}
        failures: list[OperatorError] = []
        for planned_object in desired.to_apply:
            if _lacks(planned_object, refused):
                continue
            if kind_of(planned_object) in SPARK_KINDS and self.cache.spark_operator_problem is None:
                continue  # the leader is finding out, and queues the flow then
            child = observed.children.get(id_of(planned_object))
            try:
                body = await self._apply(resource, planned_object, observed.now_s)
            except _USER_FACING_ERRORS as error:
                refused[id_of(planned_object)] = refusal_of(planned_object, error, is_absent=child is None)
                failures += [] if is_final(error) else [error]
                # The error may be kept for as long as the flow exists, and must not keep the frames of each pass.
                error.__traceback__ = None
                continue
            if body is None:
                continue
            bodies.append(body)
            children.append(cached_child(kind_of(planned_object), body))
            if planned_object["kind"] == DEPLOYMENT.name and child is None:
                created.append(planned_object["metadata"]["name"])
            event = event_of_write(planned_object, child, desired.objects, observed.children)
            if event is not None:
                await self.events.publish(resource, *event)
        if created:
            await self.events.publish(resource, "Created", f"Deployments {', '.join(created)}.")
        return Written(
            children=tuple(children),
            bodies=tuple(bodies),
            refused=tuple(refused.values()),
            failure=next(iter(failures), None),
        )

    async def pin(self, pins: Mapping[str, str], observed: ObservedFlow) -> None:
        """Writes what `status.pins` keeps as annotations of the flow's ServiceAccount, if they differ."""
        resource = observed.resource
        account = self.cache.children(resource.key).get(account_id(resource))
        if not pins or account is None or account.owner_uid != resource.uid or account.deleting:
            return
        before = account.content()["metadata"]["annotations"]
        if all(before.get(name) == value for name, value in pins.items()):
            return
        metadata = {"name": account.name, "namespace": account.namespace, "uid": account.uid}
        body = {
            "apiVersion": SERVICE_ACCOUNT.api_version,
            "kind": SERVICE_ACCOUNT.name,
            "metadata": {**metadata, "annotations": dict(pins)},
        }
        try:
            response = await self.client.apply(SERVICE_ACCOUNT, body, field_manager=FIELD_MANAGER)
        except _USER_FACING_ERRORS as error:
            _LOG.warning("%s/%s: its id and version are pinned in the status alone: %s", *resource.key, error)
            return
        self.metrics.api_writes.labels(verb="apply", kind=SERVICE_ACCOUNT.plural).inc()
        self.cache.put(SERVICE_ACCOUNT, response)

    async def prune(self, desired: DesiredState, observed: ObservedFlow, applied: Written) -> Written:
        """Deletes managed objects that are not planned. Returns what *applied* and it were refused; raises as `apply`."""
        failure, refused = applied.failure, list(applied.refused)
        if desired.inputs is None or observed.unreadable:
            return Written(refused=applied.refused, failure=failure)
        children: list[CachedChild] = []
        planned = {*map(id_of, desired.objects)}
        host_of = {kind.value: host.value for kind, host in host_of_each(desired.pods).items()}
        for child in observed.children.values():
            if child.id in planned or not _is_prunable(child, desired, observed.resource):
                continue
            try:
                is_deleted = await self._prune(child)
            except _USER_FACING_ERRORS as error:
                failure = failure or error
                name = f"the deletion of {child.kind.name} {child.name}"
                refused.append(RefusedObject(name=name, message=_response(error)))
                continue
            if is_deleted:
                children.append(child)
                await self.events.publish(observed.resource, *event_of_removal(child, host_of))
        return Written(children=tuple(children), refused=tuple(refused), failure=failure)

    async def _apply(self, resource: Resource, planned: Object, now_s: float) -> Object | None:
        """Returns the object as written, or None if it already was as planned.

        Raises NameConflictError where the object of that name is not this MirrorFlow's, KindMissingError where the cluster has no
        such kind, ApiServerError where a request fails, or the same one failed before and would again.
        """
        wanted, kind = with_owner(planned, resource), kind_of(planned)
        if kind in SPARK_KINDS and self.cache.spark_operator_problem:
            raise KindMissingError(kind.name, planned["metadata"]["name"], self.cache.spark_operator_problem)
        metadata = wanted["metadata"]
        live = self.cache.children(resource.key).get(id_of(planned))
        if live is not None and self._is_as_planned(wanted, live):
            return None
        if live is None:
            live = await self._read_by_name(wanted)
        self._check_owner(live, resource)
        before = self._refused.pop(id_of(planned), None)
        digest = "" if live is None else live.digest
        if before is not None and before.holds(metadata["annotations"][CONTENT_HASH], digest, now_s):
            self._refused[id_of(planned)] = before
            raise before.error
        if live is not None:
            metadata["uid"], metadata["resourceVersion"] = live.uid, live.resource_version
        # A first apply is not forced: another writer may have created the object since it was read, and its
        # fields must stay.
        try:
            response = await self.client.apply(kind, wanted, force=live is not None)
        except _USER_FACING_ERRORS as error:
            if is_final(error):
                self._remember_refusal(wanted, digest, now_s, error)
            raise
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
        try:
            await self.client.delete(child.kind, child.namespace, child.name, uid=child.uid)
        except NotFoundError:
            return False  # the watch has not reported yet that someone else has deleted it
        self.metrics.api_writes.labels(verb="delete", kind=child.kind.plural).inc()
        self._settled.pop(child.id, None)
        return True

    def _remember_refusal(self, wanted: Object, live_digest: str, now_s: float, error: OperatorError) -> None:
        if len(self._refused) >= SETTLED_MAX:
            self._refused.clear()
        self._refused[id_of(wanted)] = _Refusal(
            content_hash=wanted["metadata"]["annotations"][CONTENT_HASH],
            live_digest=live_digest,
            at_s=now_s,
            error=error,
        )

    def _check_owner(self, live: CachedChild | None, resource: Resource) -> None:
        """Raises NameConflictError where *live* belongs to another MirrorFlow that still exists.

        The names of two flows can give one object the same name: `a` with a pod of its source, and `a-source`.
        """
        if live is None or live.owner_uid in {"", resource.uid}:
            return
        owner = next(
            (flow.resource for flow in self.cache.flows.values() if flow.resource.uid == live.owner_uid), None
        )
        if owner is not None and owner.key != resource.key:
            raise NameConflictError(live.kind.name, live.namespace, live.name, owner=owner.name)

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


def account_id(resource: Resource) -> ObjectId:
    """Returns the id of the flow's own ServiceAccount."""
    return SERVICE_ACCOUNT.name, resource.namespace, resource.name


def is_final(error: OperatorError) -> bool:
    """Whether the object itself is refused, so that sending it again has the same result."""
    # The API server has status 500 for an object that its types cannot hold.
    if isinstance(error, KindMissingError):
        return True  # the leader queues the flow when the kind is there
    return isinstance(error, RejectedError) or (isinstance(error, BrokenError) and _UNTYPED in error.response)


def refusal_of(planned: Object, error: OperatorError, *, is_absent: bool) -> RefusedObject:
    """Returns what the status says about *error*; *is_absent*: the cluster has no such object of this flow."""
    is_taken, is_missing = isinstance(error, NameConflictError), isinstance(error, KindMissingError)
    return RefusedObject(
        name=f"{planned['kind']} {planned['metadata']['name']}",
        part=_part_of(planned),
        message=_response(error),
        is_taken=is_taken,
        is_kind_missing=is_missing,
        is_final=is_taken or is_final(error),
        is_absent=is_absent,
        is_config=planned["kind"] == CONFIG_MAP.name,
    )


def _response(error: OperatorError) -> str:
    return error.response if isinstance(error, ApiServerError) else str(error)


def _part_of(planned: Object) -> str | None:
    """Returns the connector or the Spark job that *planned* belongs to; None where it belongs to the flow."""
    labels = planned["metadata"]["labels"]
    part: str | None = labels.get(CONNECTOR_LABEL) or labels.get(RUN_LABEL)
    return part


def _lacks(planned: Object, refused: Mapping[ObjectId, RefusedObject]) -> bool:
    """Whether the pods of *planned* would miss an object, or run with files of an earlier plan."""
    if kind_of(planned) not in _WORKLOADS:
        return False
    part = _part_of(planned)
    return any(
        (refused_object.is_absent and refused_object.part in {None, part})
        or (refused_object.is_config and refused_object.part == part)
        for refused_object in refused.values()
    )


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
    if child.kind is SPARK_APPLICATION:
        # The earlier attempts of a run stay as long as the run: they count, and their pods have the logs.
        present = {
            run_name_of(name) for kind, _, name in map(id_of, desired.objects) if kind == child.kind.name
        }
        if run_name_of(child.name) in present | desired.due_jobs.runs.kept:
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
    if planned_object["kind"] in {JOB.name, SPARK_APPLICATION.name} and existing is None:
        return "Started", f"{planned_object['kind']} {name}."
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
    new_files = next(planned_object for planned_object in planned if id_of(planned_object) == files)
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
