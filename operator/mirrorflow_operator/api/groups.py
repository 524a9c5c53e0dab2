"""Types of consumer groups, and of the offset syncs and heartbeats that their translation needs."""

from enum import Enum

from pydantic import Field

from mirrorflow_operator.api.model import LIST_SET, PATTERNS_MAX, ApiModel, Pattern


class Side(Enum):
    """The source or the target cluster."""

    SOURCE = "Source"
    TARGET = "Target"


class Groups(ApiModel):
    """Selection of consumer groups."""

    include: tuple[Pattern, ...] = Field(
        (".*",),
        max_length=PATTERNS_MAX,
        description="Names or regexes of consumer groups whose offsets are translated. If absent, all groups.",
        json_schema_extra=LIST_SET,
    )
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=PATTERNS_MAX,
        description="Names or regexes of consumer groups to exclude, in addition to MirrorMaker 2's defaults. "
        "Takes precedence over include.",
        json_schema_extra=LIST_SET,
    )
    sync_offsets: bool = Field(
        True, description="Whether translated offsets are committed to the target's inactive groups."
    )


class OffsetSyncs(ApiModel):
    """MirrorMaker 2's offset-syncs topic."""

    location: Side = Field(
        Side.TARGET,
        description="Cluster that stores the topic. With Target, a flow needs only Read and Describe on its "
        "source. Immutable.",
    )


class Heartbeats(ApiModel):
    """MirrorMaker 2's heartbeats."""

    emit_to: tuple[Side, ...] = Field(
        (Side.TARGET, Side.SOURCE),
        max_length=2,
        description="Clusters to which heartbeats are written. If absent, both. The hop count "
        "(replicationHops) needs those on the source.",
        json_schema_extra=LIST_SET,
    )
