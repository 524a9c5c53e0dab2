"""Defines the statuses of MirrorPair and Switchover, which only the operator writes.

They have names of members, states and counts, but no groups or secrets, and topics only where records of them are lost. Every list is
bounded.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from mirrorflow_operator.api.model import ApiModel, list_map
from mirrorflow_operator.api.status import (
    CONDITIONS_MAX,
    Condition,
    Count,
    Message,
    PascalCase,
    Timestamp,
    parse_conditions,
)

STATES_MAX = 40  # an attempt has ten states or fewer
NOTES_MAX = 10
LOST_TOPICS_MAX = 10
ObjectStatus = TypeVar("ObjectStatus", bound=ApiModel)
Conditions = Annotated[
    tuple[Condition, ...], Field(max_length=CONDITIONS_MAX, json_schema_extra=list_map("type"))
]
MemberAlias = Annotated[str, Field(max_length=100)]
ShortName = Annotated[str, Field(max_length=253)]


class RefusedWrites(ApiModel):
    """For how long applications could not write."""

    since: Timestamp = Field(description="Time at which the source was fenced.")
    milliseconds: Count | None = Field(
        None,
        description="Time until writes were accepted again, on either side. Absent while they are refused.",
    )


class SealSummary(ApiModel):
    """Where the source ended when no application could write any more."""

    partitions: Count = Field(0, description="Number of partitions.")
    sha256: Annotated[str, Field(max_length=64)] = Field(
        "", description="Digest of the seal, which is in the journal on both clusters."
    )


class StateTime(ApiModel):
    """When a state was entered."""

    state: PascalCase = Field(description="State of the switchover.")
    entered: Timestamp = Field(description="Time at which it was entered.")


class TopicLoss(ApiModel):
    """What is known to be lost of one topic."""

    topic: Annotated[str, Field(max_length=249)] = Field(description="Name of the topic.")
    lost_offsets_at_least: Count = Field(0, description="Number of offsets that are lost; there may be more.")


class SwitchoverLoss(ApiModel):
    """What an unplanned switchover loses, as far as it is known. It is read before anything changes."""

    lost_offsets_at_least: Count = Field(
        0,
        description="Number of offsets that are lost; there may be more. An offset is a record, or a marker of a transaction.",
    )
    partitions_with_loss: Count = Field(0, description="Number of partitions of which something is lost.")
    partitions_with_unknown_end: Count = Field(0, description="Number of partitions whose end is unknown.")
    known_until: Timestamp | None = Field(
        None, description="Time until which the source was read. What was written after it is unknown."
    )
    source_answered: bool = Field(
        False, description="Whether the source still answered. A planned switchover loses nothing."
    )
    topics: Annotated[tuple[TopicLoss, ...], Field(max_length=LOST_TOPICS_MAX)] = Field(
        (), description="Topics with the largest loss."
    )


class CanaryMilliseconds(ApiModel):
    """How long each step of the canary's application took. A step that was not reached is absent."""

    copied: Count | None = Field(
        None, description="From the first acknowledgement until the target had a record."
    )
    refused: Count | None = Field(
        None, description="From the beginning of Fencing until the first refused write."
    )
    read: Count | None = Field(
        None,
        description="From the last acknowledgement until the group had read and committed everything.",
    )
    offset_moved: Count | None = Field(
        None, description="From then on until the target had the group's offset."
    )
    accepted: Count | None = Field(
        None, description="From the beginning of RollingBack until the first acknowledged write."
    )
    continued: Count | None = Field(
        None, description="From then on until the group had read that record on the target."
    )
    not_written: Count | None = Field(
        None, description="From the last acknowledgement before the fence to the first one after it."
    )


class CanarySummary(ApiModel):
    """What the application of a rehearsal saw."""

    passed: bool = Field(description="Whether the group read each record once.")
    message: Message = Field("", description="What it saw, or why it has failed.")
    client: Annotated[str, Field(max_length=100)] = Field("", description="Versions of its Kafka client.")
    records_acknowledged: Count = Field(0, description="Records that were acknowledged.")
    records_read: Count = Field(0, description="Records that the group read on the source.")
    writes_refused: Count = Field(0, description="Writes that were refused.")
    records_read_again: Count | None = Field(
        None, description="Records that the group read on both members. Absent if that is not known."
    )
    records_skipped: Count | None = Field(
        None, description="Records that the group read on neither member. Absent if that is not known."
    )
    milliseconds: CanaryMilliseconds = Field(
        default_factory=CanaryMilliseconds, description="How long each step took."
    )


class SwitchoverStatus(ApiModel):
    """What has become of the switchover, reported by the operator; it stays when the Job is gone."""

    observed_generation: int = Field(
        0, ge=0, description="Generation of the spec that this status describes."
    )
    conditions: Conditions = Field((), description="Conditions of the switchover.")
    id: Annotated[str, Field(max_length=300)] = Field(
        "", description="Id in the journal of the pair. An id that the journal has is not carried out again."
    )
    state: PascalCase | None = Field(
        None, description="State of the switchover, as in the journal of the pair on both clusters."
    )
    since: Timestamp | None = Field(None, description="Time at which the state was entered.")
    waits_for: Message = Field("", description="What the switchover waits for.")
    reason: Message = Field("", description="Why it was refused or rolled back.")
    source: MemberAlias = Field("", description="Member whose applications are moved.")
    writes_refused: RefusedWrites | None = Field(
        None, description="For how long applications could not write."
    )
    seal: SealSummary | None = Field(
        None, description="Where the source ended when no application could write any more."
    )
    loss: SwitchoverLoss | None = Field(
        None, description="What is lost, for type Unplanned; it is read before anything changes."
    )
    states: Annotated[tuple[StateTime, ...], Field(max_length=STATES_MAX)] = Field(
        (), description="Newest states with the times at which they were entered."
    )
    canary: CanarySummary | None = Field(None, description="What the application of a rehearsal saw.")
    notes: Annotated[tuple[Message, ...], Field(max_length=NOTES_MAX)] = Field(
        (), description="What users should know of it, such as producers that have to be restarted."
    )
    job: ShortName = Field("", description="Name of the Job; its log has details.")
    completion_time: Timestamp | None = Field(None, description="Time at which the switchover ended.")


class PredictedSwitchover(ApiModel):
    """What a switchover would cost now, from what the flow has last reported."""

    lag_seconds: Count | None = Field(None, description="Lag of the flow, which is drained meanwhile.")
    writes_refused_seconds: Count | None = Field(
        None, description="Estimated time for which applications could not write."
    )
    groups: Count = Field(0, description="Consumer groups whose offsets follow.")
    groups_failing: Count = Field(
        0, description="Groups whose offsets do not follow now. Their consumers may read records again."
    )
    records_read_again: Count | None = Field(
        None,
        description="Records that all groups would read again at most, if applications were moved by a planned switchover. Absent if that is "
        "not known of one of them.",
    )
    checkpoint_age_seconds: Count | None = Field(
        None,
        description="Age of the newest checkpoints. What groups have read in this time would be read again, too, if the source were lost now.",
    )


class NewestSwitchover(ApiModel):
    """The newest switchover of the pair."""

    name: ShortName = Field(description="Name of the Switchover, which may be deleted.")
    type: PascalCase = Field(description="Type of the switchover.")
    to: MemberAlias = Field(description="Member that applications were to be moved to.")
    state: PascalCase = Field(description="State of the switchover.")
    writes_refused: RefusedWrites | None = Field(
        None, description="For how long applications could not write."
    )
    completion_time: Timestamp | None = Field(None, description="Time at which the switchover ended.")


class PairStatus(ApiModel):
    """Observed state of the pair, reported by the operator."""

    observed_generation: int = Field(
        0, ge=0, description="Generation of the spec that this status describes."
    )
    conditions: Conditions = Field((), description="Conditions of the pair.")
    active: MemberAlias = Field(
        "", description="Member whose applications write now. Empty if that is not known."
    )
    promoted_by: Annotated[str, Field(max_length=300)] = Field(
        "", description="Id of the switchover that has made it the active member. Empty if there was none."
    )
    epoch: Count = Field(0, description="Number of the newest switchover in the journal, as last reported.")
    runs: ShortName = Field(
        "",
        description="MirrorFlow that a switchover has started: it runs even if its spec.state is Stopped. Empty before the first one.",
    )
    phase: PascalCase | None = Field(None, description="Ready, NotReady, SwitchingOver or Unknown.")
    predicted: PredictedSwitchover | None = Field(None, description="What a switchover would cost now.")
    switchover: NewestSwitchover | None = Field(None, description="Newest switchover of the pair.")


def parse_object_status(document: Any, model: type[ObjectStatus]) -> ObjectStatus:
    """Parses *document* into a status of type *model*; fields that cannot be read are left out one by one."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items() if isinstance(document, Mapping) else ():
        alias = field.alias or name
        if alias not in document:
            continue
        if name == "conditions":
            fields[name] = parse_conditions(document[alias])
            continue
        try:
            fields[name] = getattr(model.model_validate({alias: document[alias]}, extra="ignore"), name)
        except ValidationError:
            continue
    return model(**fields)
