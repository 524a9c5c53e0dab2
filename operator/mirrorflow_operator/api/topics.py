"""Types of the topic selection, the names on the target, and the synchronised configs and ACLs."""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import LIST_MAX, LIST_SET, PATTERNS_MAX, ApiModel, Pattern

# Each has two lists; with more, the API server would refuse the rules on their entries as too costly.
EXCEPTIONS_MAX = 20


class NamingPolicy(Enum):
    """How topics are named on the target."""

    PREFIX = "Prefix"  # MM2's DefaultReplicationPolicy
    IDENTITY = "Identity"  # MM2's IdentityReplicationPolicy


class InitialPosition(Enum):
    """Where a partition starts that has not been copied yet."""

    EARLIEST = "Earliest"
    LATEST = "Latest"
    TIMESTAMP = "Timestamp"


class OnSourceLoss(Enum):
    """What to do if source records were lost or overwritten before they were copied."""

    FAIL = "Fail"
    ALERT = "Alert"
    RESTART = "Restart"


class SyncMode(Enum):
    """What a synchronization does."""

    APPLY = "Apply"
    REPORT = "Report"
    OFF = "Off"


class Naming(ApiModel):
    """How topics are named on the target; immutable."""

    policy: NamingPolicy = Field(
        NamingPolicy.PREFIX, description="Prefix: <alias><separator><topic>. Identity: <topic>."
    )
    separator: Annotated[str, Field(min_length=1, max_length=10, pattern=r"^[a-zA-Z0-9._-]+$")] = Field(
        ".",
        description="Separator between alias and topic, and in the names of MirrorMaker 2's internal topics.",
    )


class StartFrom(ApiModel):
    """Where topics start that exist when the flow is first run; later ones are copied from their beginning."""

    position: InitialPosition = Field(InitialPosition.EARLIEST, description="Earliest, Latest or Timestamp.")
    timestamp: Annotated[str, Field(max_length=40)] | None = Field(
        None, description="Time (RFC 3339) from which records are copied, for position Timestamp."
    )


class TopicConfigException(ApiModel):
    """Topic settings that are not synchronized for some topics."""

    topics: tuple[Pattern, ...] = Field(
        min_length=1,
        max_length=EXCEPTIONS_MAX,
        description="Names or regexes of topics, matched against their names on the source.",
    )
    exclude: tuple[Pattern, ...] = Field(
        min_length=1,
        max_length=EXCEPTIONS_MAX,
        description="Regexes of settings that are not synchronized for these topics.",
    )


class ConfigSync(ApiModel):
    """Synchronization of topic settings."""

    sync: SyncMode = Field(SyncMode.APPLY, description="Apply the settings, Report differences, or Off.")
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Regexes of settings that are not synchronized, in addition to MirrorMaker 2's defaults.",
        json_schema_extra=LIST_SET,
    )
    exceptions: tuple[TopicConfigException, ...] = Field(
        (), max_length=EXCEPTIONS_MAX, description="Settings that are not synchronized for some topics."
    )


class TopicAclSync(ApiModel):
    """Synchronization of topic ACLs."""

    sync: SyncMode = Field(SyncMode.OFF, description="Apply the ACLs, Report differences, or Off.")


class Topics(ApiModel):
    """Selection of topics, and how they are copied."""

    include: tuple[Pattern, ...] = Field(
        (".*",),
        max_length=PATTERNS_MAX,
        description="Names or regexes of topics to copy, matched against the whole name. If absent, all "
        "topics.",
        json_schema_extra=LIST_SET,
    )
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=PATTERNS_MAX,
        description="Names or regexes of topics to exclude. Takes precedence over include. Internal topics "
        "are always excluded.",
        json_schema_extra=LIST_SET,
    )
    naming: Naming = Field(
        default_factory=Naming, description="How topics are named on the target. Immutable."
    )
    start_from: StartFrom = Field(
        default_factory=StartFrom,
        description="Where topics start that exist when the flow is first run; later ones are copied from "
        "their beginning.",
    )
    on_source_loss: OnSourceLoss = Field(
        OnSourceLoss.FAIL,
        description="Policy for records that were lost before they were copied. Fail: stop the partition. "
        "Alert: continue at the next available record. Restart: copy the partition again.",
    )
    replication_factor: int = Field(
        -1,
        ge=-1,
        le=32_767,
        description="Replication factor of topics that the flow creates, including internal ones. -1: default "
        "of the target.",
    )
    configs: ConfigSync = Field(default_factory=ConfigSync, description="Synchronization of topic settings.")
    acls: TopicAclSync = Field(default_factory=TopicAclSync, description="Synchronization of topic ACLs.")
