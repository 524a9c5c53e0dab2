"""Decides, before the plan, whether a flow may run, with which spec and in which version. Pure.

How the reconciler uses the result:
- `flow` is planned and applied. A flow that conflicts with another is planned as Stopped: its pods go, its
  objects stay.
- If `flow` is None, the cluster stays as it is: an unreadable spec does not say what should run, so running
  pods are neither changed nor stopped.
- An unknown version does not block other changes: the flow runs in the version of its status.
"""

from collections.abc import Sequence

from mirrorflow_core.replication_policy import flow_id
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.errors import FieldError
from mirrorflow_operator.status.conditions import Problem, Reason
from mirrorflow_operator.status.observation import Admission, Resource


def admit(
    resource: Resource,
    *,
    versions: Sequence[str],
    kubernetes_id: str | None = None,
    conflict: Problem | None = None,
) -> Admission:
    """Returns the admission of *resource*.

    *versions*: the replicator versions that the operator has, the default first. *kubernetes_id*: the id of the
    Kubernetes cluster, "" where unknown. *conflict*: the refusal by `CrossFlowChecks`, None without one.
    """
    pinned = resource.status.version
    if resource.flow is None:
        return Admission(flow=None, version=pinned, refusal=_invalid(resource.errors))
    id_ = _flow_id(resource, kubernetes_id)
    if conflict is not None:
        flow, version = _stopped(resource.flow), pinned or versions[0]
        return Admission(flow=flow, version=version, flow_id=id_, refusal=conflict, has_conflict=True)
    wanted = _version(resource.flow.spec.version, pinned, versions)
    if wanted not in versions:
        refusal = _unknown_version(wanted, pinned, versions)
        return Admission(flow=resource.flow if pinned else None, version=pinned, flow_id=id_, refusal=refusal)
    return Admission(flow=resource.flow, version=wanted, flow_id=id_)


def _version(wanted: str, pinned: str, versions: Sequence[str]) -> str:
    """Returns the version that the spec asks for, where *wanted* is its own.

    A minor version such as 1.1 means its newest patch release that the operator offers. It never leads to an older
    one than *pinned*: an operator that is rolled back changes no flow.
    """
    patches = {_patch(version, wanted): version for version in (*versions, pinned)}
    if not wanted or wanted in versions or set(patches) <= {-1}:
        return wanted or pinned or versions[0]
    return patches[max(patches)]


def _patch(version: str, minor: str) -> int:
    """Returns the patch number of *version*, -1 where it is no release of *minor*."""
    before, _, patch = version.rpartition(".")
    return int(patch) if before == minor and before.count(".") == 1 and patch.isdecimal() else -1


def _flow_id(resource: Resource, kubernetes_id: str | None) -> str:
    """Returns the id that the spec sets, else the pinned one, else that of a new flow."""
    config = {} if resource.flow is None else resource.flow.spec.connectors.source.config
    return (
        config.get("mirrorflow.flow")
        or resource.status.flow_id
        or flow_id(resource.name, resource.namespace, kubernetes_id)
    )


def _invalid(errors: Sequence[FieldError]) -> Problem:
    message = " ".join(str(error) for error in errors) or "The spec cannot be read."
    return Problem(Reason.INVALID_SPEC, message)


def _unknown_version(wanted: str, pinned: str, versions: Sequence[str]) -> Problem:
    then = f"The flow keeps version {pinned} until then." if pinned else "Nothing is started until then."
    return Problem(
        Reason.UNKNOWN_VERSION,
        f"This operator does not offer replicator {wanted}, only {', '.join(versions)}; set spec.version to one of these, "
        f"or install an operator that offers it. {then}",
    )


def _stopped(flow: MirrorFlow) -> MirrorFlow:
    return flow.model_copy(update={"spec": flow.spec.model_copy(update={"state": State.STOPPED})})
