"""Decides, before the plan, whether a flow may run, with which spec and in which version. Pure.

How the reconciler uses the result:
- `flow` is planned and applied. A flow that conflicts with another is planned as Stopped: its pods go, its
  objects stay.
- If `flow` is None, the cluster stays as it is: an unreadable spec does not say what should run, so running
  pods are neither changed nor stopped.
- An unknown version does not block other changes: the flow runs in the version of its status.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirrorflow_core.replication_policy import flow_id
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.errors import FieldError
from mirrorflow_operator.status.conditions import Reason

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A MirrorFlow as stored in the cluster.

    `flow` is None where the spec is unreadable; `errors` say why.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    created_s: float
    flow: MirrorFlow | None = None
    errors: tuple[FieldError, ...] = ()
    status: Status = field(default_factory=Status)  # empty where there is no readable status

    @property
    def key(self) -> Key:
        """Returns namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRefusal:
    """Why a flow must not run: a reason for programs and a message for people."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a flow is accepted, and what the operator runs of it.

    `refusal`: None where the flow is accepted. `version`: the replicator's, "" where unknown. `flow_id`: the id
    with which the flow claims its source alias. `has_conflict`: the flow conflicts with another one, so its
    Deployments are scaled down and none are created.
    """

    flow: MirrorFlow | None
    version: str = ""
    flow_id: str = ""
    refusal: AdmissionRefusal | None = None
    has_conflict: bool = False


def admit(
    resource: Resource,
    *,
    versions: Sequence[str],
    kubernetes_id: str = "",
    conflict: AdmissionRefusal | None = None,
) -> Admission:
    """Returns the admission of *resource*.

    *versions*: the replicator versions that the operator has, the default first. *kubernetes_id*: the id of the
    Kubernetes cluster, "" where unknown. *conflict*: the refusal of `cross_flow_checks`, None without one.
    """
    pinned = resource.status.version
    if resource.flow is None:
        return Admission(flow=None, version=pinned, refusal=_invalid(resource.errors))
    id_ = _flow_id(resource, kubernetes_id)
    if conflict is not None:
        flow, version = _stopped(resource.flow), pinned or versions[0]
        return Admission(flow=flow, version=version, flow_id=id_, refusal=conflict, has_conflict=True)
    wanted = resource.flow.spec.version or pinned or versions[0]
    if wanted not in versions:
        refusal = _unknown_version(wanted, pinned, versions)
        return Admission(flow=resource.flow if pinned else None, version=pinned, flow_id=id_, refusal=refusal)
    return Admission(flow=resource.flow, version=wanted, flow_id=id_)


def _flow_id(resource: Resource, kubernetes_id: str) -> str:
    """Returns the id that the spec sets, else the pinned one, else a new one.

    A flow with a pinned version and no pinned id was started by a release that used its name: that stays its id, so
    that an upgrade of the operator replaces no pod.
    """
    config = {} if resource.flow is None else resource.flow.spec.connectors.source.config
    pinned = resource.status.flow_id or (resource.name if resource.status.version else "")
    return (
        config.get("mirrorflow.flow") or pinned or flow_id(resource.name, resource.namespace, kubernetes_id)
    )


def _invalid(errors: Sequence[FieldError]) -> AdmissionRefusal:
    message = " ".join(str(error) for error in errors) or "The spec cannot be read."
    return AdmissionRefusal(reason=Reason.INVALID_SPEC, message=message)


def _unknown_version(wanted: str, pinned: str, versions: Sequence[str]) -> AdmissionRefusal:
    then = f"The flow keeps version {pinned} until then." if pinned else "Nothing is started until then."
    return AdmissionRefusal(
        reason=Reason.UNKNOWN_VERSION,
        message=f"This operator does not offer replicator {wanted}, only {', '.join(versions)}; set spec.version to one of these, "
        f"or install an operator that offers it. {then}",
    )


def _stopped(flow: MirrorFlow) -> MirrorFlow:
    return flow.model_copy(update={"spec": flow.spec.model_copy(update={"state": State.STOPPED})})
