"""Steps 4 and 5 of a pass: applies planned objects that differ, and prunes objects that are not planned."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.assess.admission import Resource
from mirrorflow_operator.cluster.apply import Applier
from mirrorflow_operator.cluster.event_messages import id_of, news_of, removal_of
from mirrorflow_operator.cluster.events import Events
from mirrorflow_operator.cluster.kinds import DEPLOYMENT, JOB
from mirrorflow_operator.cluster.observed import ChildSeen
from mirrorflow_operator.errors import (
    BrokenError,
    ForbiddenError,
    NotOursError,
    OperatorError,
    RejectedError,
)
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.colocation import hosts
from mirrorflow_operator.reconcile.desired_state import DesiredState
from mirrorflow_operator.reconcile.observe import ObservedFlow

# Errors that the user can fix: their message goes into the status. All others are transient.
_USER_FACING_ERRORS: Final = (NotOursError, ForbiddenError, RejectedError, BrokenError)


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
                news = news_of(one, found, desired.objects, observed.children)
                if news is not None:
                    await self.events.say(resource, *news)
        except _USER_FACING_ERRORS as error:
            failure = error
        if created and failure is None:
            await self.events.say(resource, "Created", f"Deployments {', '.join(created)}.")
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
                    await self.events.say(observed.resource, *removal_of(child, pod_of))
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
