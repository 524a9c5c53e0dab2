"""Whether a flow may run, as what, and in which version: decided before anything is planned. Pure.

What the controller does with the answer
- `flow` is what to plan and apply. A flow that must not run beside another is planned as Stopped: its pods go, its objects stay.
- `flow` is None: leave in the cluster what is there. A spec that cannot be read says nothing about what should run, so
  what runs is neither changed nor stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.assess.reasons import Reason
from mirrorflow_operator.errors import FieldError

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A MirrorFlow as it stands in the cluster. `flow` is None where `errors` say why it cannot be read."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_s: float
    flow: MirrorFlow | None = None
    errors: tuple[FieldError, ...] = ()
    status: Status = field(default_factory=Status)  # empty where there is none, or none that can be read

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a flow must not run: a word for programs, a sentence for people."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """`refusal` is None where the flow is accepted; `version` is the replicator's, "" where it is not known."""

    flow: MirrorFlow | None
    version: str = ""
    refusal: Refusal | None = None


def admit(resource: Resource, *, versions: Sequence[str], conflict: Refusal | None = None) -> Admission:
    """Of *resource*, where the operator has replicators of *versions*, its default first.

    *conflict* is what `assess.together` says of the flow beside all others.
    """
    pinned = resource.status.version
    if resource.flow is None:
        return Admission(flow=None, version=pinned, refusal=_invalid(resource.errors))
    if conflict is not None:
        return Admission(flow=_stopped(resource.flow), version=_known(pinned, versions), refusal=conflict)
    wanted = resource.flow.spec.version or pinned or versions[0]
    if wanted not in versions:
        return Admission(flow=None, version=pinned, refusal=_unknown_version(wanted, versions))
    return Admission(flow=resource.flow, version=wanted)


def _invalid(errors: Sequence[FieldError]) -> Refusal:
    message = " ".join(str(error) for error in errors) or "The spec cannot be read."
    return Refusal(reason=Reason.INVALID_SPEC, message=message)


def _unknown_version(wanted: str, versions: Sequence[str]) -> Refusal:
    return Refusal(
        reason=Reason.UNKNOWN_VERSION,
        message=f"This operator has no replicator {wanted}, only {', '.join(versions)}; set spec.version to one of these, "
        "or install the operator that has it. What runs is left as it is.",
    )


def _stopped(flow: MirrorFlow) -> MirrorFlow:
    return flow.model_copy(update={"spec": flow.spec.model_copy(update={"state": State.STOPPED})})


def _known(pinned: str, versions: Sequence[str]) -> str:
    return pinned if pinned in versions else versions[0]
