"""Which topics are copied, what they are called on the target, and what travels with them."""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import LIST_MAX, LIST_SET, PATTERNS_MAX, ApiModel, Pattern

# Lists within a list: were there more, the API server would refuse the rules that look into them as too costly.
EXCEPTIONS_MAX = 20


class NamingPolicy(Enum):
    """How target topics are named."""

    PREFIX = "Prefix"  # MM2's DefaultReplicationPolicy
    IDENTITY = "Identity"  # MM2's IdentityReplicationPolicy


class Position(Enum):
    """Where a partition begins that was never copied."""

    EARLIEST = "Earliest"
    LATEST = "Latest"
    TIMESTAMP = "Timestamp"


class OnSourceLoss(Enum):
    """What to do when source records were lost or rewritten before they were copied."""

    FAIL = "Fail"
    ALERT = "Alert"
    RESTART = "Restart"


class SyncMode(Enum):
    """How far a synchronisation goes."""

    APPLY = "Apply"
    REPORT = "Report"
    OFF = "Off"


class Naming(ApiModel):
    """What a topic is called on the target; never changes."""

    policy: NamingPolicy = Field(
        NamingPolicy.PREFIX, description="Prefix: <alias><separator><topic>. Identity: <topic>."
    )
    separator: Annotated[str, Field(min_length=1, max_length=10, pattern=r"^[a-zA-Z0-9._-]+$")] = Field(
        ".", description="Between alias and topic, and in the names of MM2's internal topics."
    )


class StartFrom(ApiModel):
    """Where topics begin that exist when the flow is first run; what appears later is read from its beginning."""

    position: Position = Field(Position.EARLIEST, description="Earliest, Latest or Timestamp.")
    timestamp: Annotated[str, Field(max_length=40)] | None = Field(
        None, description="Timestamp: the first record at or after this moment (RFC 3339)."
    )


class ConfigException(ApiModel):
    """Settings that are left alone on the copies of some topics."""

    topics: tuple[Pattern, ...] = Field(
        min_length=1,
        max_length=EXCEPTIONS_MAX,
        description="Names or regexes, matched against the source's names.",
    )
    exclude: tuple[Pattern, ...] = Field(
        min_length=1,
        max_length=EXCEPTIONS_MAX,
        description="Settings left alone on their copies, as regexes.",
    )


class ConfigSync(ApiModel):
    """Topic settings."""

    sync: SyncMode = Field(SyncMode.APPLY, description="Apply; Report differences; Off.")
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Settings left alone, as regexes, besides MM2's default list.",
        json_schema_extra=LIST_SET,
    )
    exceptions: tuple[ConfigException, ...] = Field(
        (), max_length=EXCEPTIONS_MAX, description="Settings left alone on single topics."
    )


class AclSync(ApiModel):
    """Topic ACLs."""

    sync: SyncMode = Field(SyncMode.OFF, description="Apply; Report differences; Off.")


class Topics(ApiModel):
    """Which topics are copied, and how."""

    include: tuple[Pattern, ...] = Field(
        (".*",),
        max_length=PATTERNS_MAX,
        description="Names or regexes, each matched against the whole name; absent: all topics.",
        json_schema_extra=LIST_SET,
    )
    exclude: tuple[Pattern, ...] = Field(
        (),
        max_length=PATTERNS_MAX,
        description="Names or regexes that win over include; internal topics are always left out.",
        json_schema_extra=LIST_SET,
    )
    naming: Naming = Field(default_factory=Naming, description="What a topic is called on the target.")
    start_from: StartFrom = Field(default_factory=StartFrom, description="Where copying begins.")
    on_source_loss: OnSourceLoss = Field(
        OnSourceLoss.FAIL,
        description="Fail: the partition stops and says so. Alert: go on from what there is. Restart: copy it again.",
    )
    replication_factor: int = Field(
        -1,
        ge=-1,
        le=32_767,
        description="Of topics that are created, internal ones too; -1: the target's default.",
    )
    configs: ConfigSync = Field(default_factory=ConfigSync, description="Topic settings.")
    acls: AclSync = Field(default_factory=AclSync, description="Topic ACLs.")
