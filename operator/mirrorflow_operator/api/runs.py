"""Types of the actions that run once per `runId`: seed, verification, restart. Only a new id starts one.

A seed and a verification are Spark jobs: a driver, and executors that it starts and ends itself.
"""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.connectors import ImageName, Resources, Template
from mirrorflow_operator.api.model import ApiModel, ObjectName, Quantity, RunId


class ForeignRecordPolicy(Enum):
    """What to do if a target topic contains records that the flow has not written."""

    REFUSE = "Refuse"
    ACCEPT = "Accept"


class Executors(ApiModel):
    """Spark executors."""

    max: int = Field(4, ge=1, le=1_000, description="Maximum number of executors; idle ones are removed.")
    cores: int = Field(
        1, ge=1, le=64, description="Number of partitions that one executor processes concurrently."
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="Compute resources of each executor; at least 768Mi of memory. If absent, they are "
        "derived from cores.",
    )


class Driver(ApiModel):
    """Spark's driver, the pod of the Job."""

    resources: Resources = Field(
        default_factory=Resources,
        description="Compute resources of the driver. If absent, it requests 100m of CPU and 1Gi of memory.",
    )


class SparkJob(ApiModel):
    """Settings that all Spark jobs of a flow have."""

    executors: Executors = Field(default_factory=Executors, description="Spark executors.")
    driver: Driver = Field(default_factory=Driver, description="Spark driver.")
    bytes_per_second: Quantity | None = Field(
        None,
        description="Maximum number of bytes that the whole job reads per second. If absent, "
        "spec.limits.bytesPerSecond applies.",
    )
    image: ImageName | None = Field(
        None,
        description="Container image to run instead of the operator's default, for example to test a build.",
    )
    template: Template = Field(
        default_factory=Template,
        description="Fields of the driver and executor pods that can be customized. The grace period of a "
        "driver is at least one minute.",
    )


class Seed(SparkJob):
    """Bulk copy to the target, after which the source connector continues."""

    run_id: RunId = Field("", description="Id of the run. A new value starts a seed; if empty, none runs.")
    foreign_records: ForeignRecordPolicy = Field(
        ForeignRecordPolicy.REFUSE,
        description="Policy for target topics that contain records of other producers. Refuse: the seed "
        "fails. Accept: it continues and keeps them.",
    )


class Output(ApiModel):
    """Storage for the results of verifications."""

    claim_name: ObjectName = Field(
        description="Name of a PersistentVolumeClaim in the namespace of the flow. Only the driver mounts it, "
        "and creates a directory named after the flow."
    )
    fs_group: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="Group id that can write to the volume. If absent, none is set; the platform or the "
        "volume must grant access.",
    )


class Verify(SparkJob):
    """Comparison of the records on both clusters."""

    run_id: RunId = Field(
        "", description="Id of the run. A new value starts a verification; if empty, only the schedule does."
    )
    schedule: Annotated[str, Field(max_length=100)] = Field(
        "", description="Cron expression with five fields. If empty, there is no schedule."
    )
    time_zone: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")] = Field(
        "UTC", description="Time zone of the schedule, as in the IANA time zone database."
    )
    sample: Annotated[str, Field(max_length=10, pattern=r"^(0(\.[0-9]+)?|1(\.0+)?)$")] = Field(
        "1.0", description="Fraction of windows to compare, greater than 0 and at most 1."
    )
    output: Output | None = Field(
        None,
        description="Storage for the table, JSON and page of each run. If absent, only the log has a summary.",
    )


class RollingRestart(ApiModel):
    """Rolling restart of the connectors."""

    run_id: RunId = Field(
        "", description="Id of the restart. A new value restarts the connectors; if empty, none is restarted."
    )
