"""An observation -> the status to write, and what to remember until the next one. Pure and total."""

from dataclasses import dataclass

from mirrorflow_operator.api.status import Condition, ConditionStatus, Status
from mirrorflow_operator.assess.moments import moment
from mirrorflow_operator.assess.observation import Memory, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """`status` is the whole of it; `memory` belongs into the flow's next observation.

    `again_after_s`: when to assess again though nothing may have happened by then; None: when something happens.
    """

    status: Status
    memory: Memory
    again_after_s: float | None = None


def assess(observation: Observation) -> Assessment:
    """What *observation* means. The same observation gives the same status, and an unchanged one the status it was given."""
    resource = observation.resource
    ready = Condition(
        type="Ready",
        status=ConditionStatus.UNKNOWN,
        observed_generation=resource.generation,
        last_transition_time=moment(observation.now_s),
        reason="NotAssessed",
        message="The flow was not looked at yet.",
    )
    status = resource.status.model_copy(
        update={"observed_generation": resource.generation, "conditions": (ready,)}
    )
    return Assessment(status=status, memory=observation.memory)
