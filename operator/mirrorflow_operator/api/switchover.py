"""Defines Switchover: one request to move the applications of a MirrorPair, carried out once and kept as its record.

The spec never changes, so that a revert in Git is no failover. `pair_status` has what has become of it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from mirrorflow_operator.api.load import field_errors, validated
from mirrorflow_operator.api.model import Alias, ApiModel
from mirrorflow_operator.api.rules.pair_rules import SWITCHOVER_RULES, check_object
from mirrorflow_operator.api.spec import API_VERSION, NAME_MAX, FlowMetadata
from mirrorflow_operator.errors import InvalidSpecError

SWITCHOVER_KIND = "Switchover"
TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
GroupName = Annotated[str, Field(min_length=1, max_length=255)]


class RehearsalCanary(ApiModel):
    """An application with which a rehearsal is measured: a producer and a consumer group of a topic that has no other clients."""

    topic: TopicName = Field(
        description="Topic with one partition that both flows copy. If it does not exist, it is created; it stays afterwards."
    )
    group: GroupName | None = Field(
        None, description="Consumer group that follows its topics. If absent, the name of the topic."
    )


class SwitchoverSpec(ApiModel):
    """What is to be done."""

    pair: Annotated[str, Field(max_length=NAME_MAX, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Name of the MirrorPair, in the same namespace."
    )
    to: Alias = Field(description="Member of the pair that applications are moved to.")
    type: Literal["Planned", "Rehearsal", "Unplanned", "Restore"] = Field(
        description="Planned; Rehearsal: everything up to the promotion, which is then undone; Unplanned: the other member is lost, and "
        "applications are moved without it; or Restore: as Planned, back to the member that an Unplanned one has left, once that is "
        "reconciled.",
    )
    live_groups: bool = Field(
        False,
        description="Whether consumers may stay at the source. They may then read records again.",
    )
    accept_loss: bool = Field(
        False,
        description="Whether records that were not copied may be lost. It must be true for type Unplanned, and only for that.",
    )
    canary: RehearsalCanary | None = Field(
        None,
        description="Application that runs beside a Rehearsal and measures what others would see. It logs in as spec.members.<alias>.probe of "
        "the pair, on both members. Only for type Rehearsal.",
    )


class Switchover(ApiModel):
    """The whole resource."""

    api_version: Literal["mirrorflow.io/v1alpha1"] = Field(description=API_VERSION)
    kind: Literal["Switchover"] = Field(description=SWITCHOVER_KIND)
    metadata: FlowMetadata = Field(description="Name and namespace.")
    spec: SwitchoverSpec = Field(description="What is to be done. Immutable.")
    status: dict[str, Any] = Field(
        default_factory=dict, description="Observed state, written by the operator; not read here."
    )


def parse_switchover(document: Mapping[str, Any]) -> Switchover:
    """Returns the switchover in a parsed document. Raises InvalidSpecError with all errors."""
    try:
        switchover = validated(document, Switchover)
    except ValidationError as error:
        raise InvalidSpecError(field_errors(error, Switchover)) from error
    if errors := check_object(switchover, SWITCHOVER_RULES):
        raise InvalidSpecError(errors)
    return switchover
