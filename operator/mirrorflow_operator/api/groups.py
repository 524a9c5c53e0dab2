"""Consumer groups, and what their translation stands on: offset syncs and heartbeats."""

from enum import Enum

from pydantic import Field

from mirrorflow_operator.api.model import LIST_SET, PATTERNS_MAX, ApiModel, Pattern


class Side(Enum):
    """One of the two clusters."""

    SOURCE = "Source"
    TARGET = "Target"


class Groups(ApiModel):
    """Which consumer groups are translated."""

    include: tuple[Pattern, ...] = Field(
        (".*",),
        max_length=PATTERNS_MAX,
        description="Names or regexes of groups; absent: all.",
        json_schema_extra=LIST_SET,
    )
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=PATTERNS_MAX,
        description="Names or regexes that win over include, besides MM2's default list.",
        json_schema_extra=LIST_SET,
    )
    sync_offsets: bool = Field(True, description="Whether offsets are written to the target's idle groups.")


class OffsetSyncs(ApiModel):
    """MM2's offset-syncs topic."""

    location: Side = Field(
        Side.TARGET, description="Target: a flow needs only Read and Describe on its source. Never changes."
    )


class Heartbeats(ApiModel):
    """MM2's heartbeats."""

    emit_to: tuple[Side, ...] = Field(
        (Side.TARGET, Side.SOURCE),
        max_length=2,
        description="Where heartbeats are written, absent: both; those on the source make replicationHops work.",
        json_schema_extra=LIST_SET,
    )
