"""Actions that run once per `runId`: seeding, verification, restart. A changed id is the only trigger.

Seeding and verification are Spark jobs: a driver, and executors that it starts and ends itself.
"""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.connectors import ImageName, Resources
from mirrorflow_operator.api.model import ApiModel, ObjectName, RunId
from mirrorflow_operator.api.quantity import Quantity
from mirrorflow_operator.api.template import Template


class ForeignRecords(Enum):
    """What to do where a target topic holds records that the flow has not written."""

    REFUSE = "Refuse"
    ACCEPT = "Accept"


class Executors(ApiModel):
    """Spark executors."""

    max: int = Field(4, ge=1, le=1_000, description="At most so many; those that have nothing to do go.")
    cores: int = Field(1, ge=1, le=64, description="Partitions that one executor works on at once.")
    resources: Resources = Field(
        default_factory=Resources,
        description="Of each; 768Mi at least, which Spark's limit is, too. Absent: what its cores need.",
    )


class Driver(ApiModel):
    """Spark's driver, the pod of the Job."""

    resources: Resources = Field(
        default_factory=Resources, description="Absent: a tenth of a core and 1Gi, which nobody is to exceed."
    )


class SparkJob(ApiModel):
    """What all Spark jobs of a flow have."""

    executors: Executors = Field(default_factory=Executors, description="Spark executors.")
    driver: Driver = Field(default_factory=Driver, description="Spark's driver.")
    bytes_per_second: Quantity | None = Field(
        None, description="Bytes read per second by the whole job; absent: spec.limits.bytesPerSecond."
    )
    image: ImageName | None = Field(
        None, description="Run instead of the operator's own, for example to try a build."
    )
    template: Template = Field(
        default_factory=Template,
        description="The part of driver and executor pods that may be changed; a driver gets a minute to end at least.",
    )


class Seed(SparkJob):
    """Fill the target in bulk, then hand over to the connector."""

    run_id: RunId = Field("", description="Change it to seed; empty: never.")
    foreign_records: ForeignRecords = Field(
        ForeignRecords.REFUSE,
        description="Refuse: a target topic that holds records of others fails the seed. Accept: they stay, and it goes on.",
    )


class Output(ApiModel):
    """Where the results of verifications are kept."""

    claim_name: ObjectName = Field(
        description="A PersistentVolumeClaim beside the flow; the driver alone mounts it, and makes a folder of the flow's name."
    )
    fs_group: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="The group that may write the volume. Absent: none, where the platform or the volume sees to it.",
    )


class Verify(SparkJob):
    """Compare both sides."""

    run_id: RunId = Field("", description="Change it to verify now; empty: by schedule alone.")
    schedule: Annotated[str, Field(max_length=100)] = Field(
        "", description="Cron expression of five fields; empty: none."
    )
    time_zone: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")] = Field(
        "UTC", description="Of the schedule, as the time zone database names it."
    )
    sample: Annotated[str, Field(max_length=10, pattern=r"^(0(\.[0-9]+)?|1(\.0+)?)$")] = Field(
        "1.0", description="The part of all windows that is compared, more than 0, up to 1."
    )
    output: Output | None = Field(
        None, description="Keep table, JSON and page of each run; absent: the log has the summary alone."
    )


class Restart(ApiModel):
    """Restart the connectors."""

    run_id: RunId = Field("", description="Change it to restart; empty: never.")
