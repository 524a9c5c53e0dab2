"""Steps 4 and 5 of a pass: applies planned objects that differ, and prunes objects that are not planned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.cluster.apply import Applier
from mirrorflow_operator.cluster.client import CONFIG_MAP, DEPLOYMENT, JOB
from mirrorflow_operator.cluster.events import Events
from mirrorflow_operator.cluster.observed import ChildSeen
from mirrorflow_operator.cluster.view import Id
from mirrorflow_operator.errors import (
    BrokenError,
    ForbiddenError,
    NameConflictError,
    OperatorError,
    RejectedError,
)
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.colocation import hosts
from mirrorflow_operator.plan.names import CONNECTOR_LABEL
from mirrorflow_operator.plan.objects import Object
from mirrorflow_operator.reconcile.desired_state import DesiredState
from mirrorflow_operator.reconcile.observe import ObservedFlow
from mirrorflow_operator.status.admission import Resource
from mirrorflow_operator.status.rollouts import reasons_to_roll

# Errors that the user can fix: their message goes into the status. All others are transient.
_USER_FACING_ERRORS: Final = (NameConflictError, ForbiddenError, RejectedError, BrokenError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The objects that were written, and the error that ended the step, if the user can fix it."""

    children: tuple[ChildSeen, ...] = ()
    bodies: tuple[Mapping[str, Any], ...] = ()  # as the API server returned them
    failure: OperatorError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The objects that were deleted, and the error that ended the step, if the user can fix it."""

    children: tuple[ChildSeen, ...] = ()
    failure: OperatorError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectWriter:
    """Writes the objects of flows, with an Event for each write that a user should know of."""

    applier: Applier
    events: Events

    async def apply(self, desired: DesiredState, observed: ObservedFlow) -> Applied:
        """Writes the objects that differ. Raises OperatorError for an error that only time can fix."""
        resource = observed.resource
        if observed.unreadable:
            return Applied(failure=ForbiddenError(f"namespace {resource.namespace}", observed.unreadable))
        children: list[ChildSeen] = []
        bodies: list[Mapping[str, Any]] = []
        created: list[str] = []
        failure: OperatorError | None = None
        try:
            for one in desired.to_apply:
                found = observed.children.get(id_of(one))
                written = await self.applier.apply(resource, one)
                if written is None:
                    continue
                children.append(written.child)
                bodies.append(written.body)
                if one["kind"] == DEPLOYMENT.name and found is None:
                    created.append(written.child.name)
                event = event_of_write(one, found, desired.objects, observed.children)
                if event is not None:
                    await self.events.publish(resource, *event)
        except _USER_FACING_ERRORS as error:
            failure = error
        if created and failure is None:
            await self.events.publish(resource, "Created", f"Deployments {', '.join(created)}.")
        return Applied(children=tuple(children), bodies=tuple(bodies), failure=failure)

    async def prune(self, desired: DesiredState, observed: ObservedFlow, applied: Applied) -> Pruned:
        """Deletes managed objects that are not planned, unless *applied* failed. Raises as `apply` does."""
        if desired.inputs is None or applied.failure is not None:
            return Pruned(failure=applied.failure)
        children: list[ChildSeen] = []
        planned = {*map(id_of, desired.objects)}
        pod_of = {
            names.connector_word(kind): names.connector_word(host)
            for kind, host in hosts(desired.pods).items()
        }
        try:
            for child in observed.children.values():
                if child.id in planned or not _is_prunable(child, desired, observed.resource):
                    continue
                if await self.applier.prune(child):
                    children.append(child)
                    await self.events.publish(observed.resource, *event_of_removal(child, pod_of))
        except _USER_FACING_ERRORS as error:
            return Pruned(children=tuple(children), failure=error)
        return Pruned(children=tuple(children))


def _is_prunable(child: ChildSeen, desired: DesiredState, resource: Resource) -> bool:
    if child.deleting or child.owner_uid != resource.uid or child.name in desired.postponed:
        return False
    if child.kind is JOB and child.name in desired.due_jobs.runs.kept:
        return False
    # The admission policy would refuse to delete an unmanaged object, which would fail the whole pass.
    return child.is_managed()


def id_of(planned: Object) -> Id:
    """Returns kind, namespace and name."""
    return planned["kind"], planned["metadata"]["namespace"], planned["metadata"]["name"]


def event_of_write(
    one: Object, found: ChildSeen | None, planned: Sequence[Object], before: Mapping[Id, ChildSeen]
) -> tuple[str, str] | None:
    """Returns reason and note of the Event for writing *one*, or None if it needs no Event.

    *found* is the object before the write, *before* holds all objects of the flow before the pass.
    """
    name = one["metadata"]["name"]
    if one["kind"] == JOB.name and found is None:
        return "Started", f"Job {name}."
    if one["kind"] != DEPLOYMENT.name or found is None:
        return None
    why = _why_it_rolls(one, planned, before)
    if why:
        return "Rolling", f"Replacing the pods of {name}: {', '.join(why)}."
    count = one["spec"]["replicas"]
    if found.content()["spec"].get("replicas") != count:
        return "Scaled", f"Scaled {name} to {count} replicas."
    return None


def _why_it_rolls(
    deployment: Object, planned: Sequence[Object], before: Mapping[Id, ChildSeen]
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


def event_of_removal(child: ChildSeen, homes: Mapping[str, str]) -> tuple[str, str]:
    """Returns reason and note of the Event for deleting *child*.

    *homes* maps each planned connector to the connector whose pod it runs in, both by name.
    """
    word = child.content()["metadata"]["labels"].get(CONNECTOR_LABEL, "")
    home = homes.get(word, word)
    why = "the flow no longer needs it" if home == word else f"{word} runs in the pod of {home}"
    return "Removed", f"{child.kind.name} {child.name}: {why}."
