"""Defines the fields of Spark jobs, which run once per `runId`, by a schedule, or all the time."""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import ApiModel, ObjectName, Properties, Quantity, RunId
from mirrorflow_operator.api.workloads import ImageName, PosixId, Resources, Template

TimeZone = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")]
# Stores that the pods of driver and executors all reach; they share no disk.
ARCHIVE_URL_PATTERN = r"^(s3a?|gs|abfss?|hdfs)://\S+$"
ArchiveUrl = Annotated[str, Field(max_length=1_024, pattern=ARCHIVE_URL_PATTERN)]
# Keys of `spark.conf` that fields or the operator set; CEL and Python use the same expression.
SPARK_KEYS_SET = (
    "^spark[.](master|remote|app[.]name|submit[.]|executor[.](cores|memory|memoryOverhead|instances)$"
    "|driver[.](host|bindAddress|port|blockManager[.]port)$|blockManager[.]port$|authenticate|network[.]crypto[.]"
    "|dynamicAllocation[.](enabled|initialExecutors|maxExecutors)$|eventLog[.](enabled|dir)$"
    "|kubernetes[.](namespace$|authenticate|container[.]image|driver[.]"
    "|executor[.](container[.]image|podTemplate|disableConfigMap|request[.]cores|limit[.]cores)))"
)
# Spark shows its settings to everyone who sees the job.
SPARK_SECRETS = (
    "(?i)(password|passwd|secret|token|credential|(access|account|private|encryption)[._-]?key|[.]sas[.])"
)


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


class SparkEventLog(ApiModel):
    """Folder of Spark's event log, for a history server. The driver writes it."""

    url: Annotated[str, Field(max_length=1_024, pattern=r"^[a-z][a-z0-9+.-]*://\S+$")] | None = Field(
        None, description="Address of a folder that Spark reaches, such as hdfs://namenode:8020/spark-events."
    )
    claim_name: ObjectName | None = Field(None, description="PersistentVolumeClaim that the driver mounts.")
    fs_group: PosixId | None = Field(None, description="Group id that can write to the volume.")


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
        description="Image to run instead of the operator's default.",
    )
    template: Template = Field(
        default_factory=Template,
        description="Fields of the driver and executor pods that can be customized. The grace period of a "
        "driver is at least one minute.",
    )


class SparkLauncher(Enum):
    """What starts and supervises the driver of a job."""

    JOB = "Job"
    SPARK_APPLICATION = "SparkApplication"


class SparkSettings(ApiModel):
    """What all Spark jobs of a flow share."""

    conf: Properties = Field(
        default_factory=dict,
        description="Further properties of Spark. Those that fields or the operator set, and secrets, are refused.",
    )
    event_log: SparkEventLog | None = Field(None, description="Folder of Spark's event log.")
    queue: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] | None = Field(
        None, description="Name of a LocalQueue of Kueue, which then decides when a Job starts."
    )
    launcher: SparkLauncher = Field(
        SparkLauncher.JOB,
        description="Job, or SparkApplication: Kubeflow's Spark operator starts the drivers.",
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
    keys: bool = Field(
        False,
        description="Whether results have the keys of the first records that differ. The directory of such a result is its owner's alone.",
    )


class Verify(SparkJob):
    """Comparison of the records on both clusters."""

    run_id: RunId = Field(
        "", description="Id of the run. A new value starts a verification; if empty, only the schedule does."
    )
    schedule: Annotated[str, Field(max_length=100)] = Field(
        "", description="Cron expression with five fields. If empty, there is no schedule."
    )
    time_zone: TimeZone = Field(
        "UTC", description="Time zone of the schedule, as in the IANA time zone database."
    )
    sample: Annotated[str, Field(max_length=10, pattern=r"^(0(\.[0-9]+)?|1(\.0+)?)$")] = Field(
        "1.0", description="Fraction of windows to compare, greater than 0 and at most 1."
    )
    output: Output | None = Field(
        None,
        description="Storage for the table, JSON and page of each run. If absent, only the log has a summary.",
    )


class Archive(SparkJob):
    """Parquet files of the flow's topics in an object store, and the pods of its exports and restores."""

    url: ArchiveUrl = Field(
        description="Address of the archive's folder, such as s3://bucket/orders. Credentials come from template.env "
        "or the identity of the pods."
    )
    schedule: Annotated[str, Field(max_length=100)] = Field(
        "",
        description="Cron expression with five fields; each run adds what is new. If empty, there is no schedule.",
    )
    time_zone: TimeZone = Field(
        "UTC", description="Time zone of the schedule, as in the IANA time zone database."
    )
    follow: bool = Field(
        False, description="Whether one job adds what is new again and again, instead of a schedule."
    )
    interval_seconds: int = Field(
        60, ge=1, le=86_400, description="Seconds between the starts of two increments, with follow."
    )
    file_bytes: Quantity | None = Field(
        None, description="Least planned size of a file, in bytes. If absent, 128Mi."
    )


class Restore(ApiModel):
    """Copy of an archive to the target, after which the source connector continues. Its pods are those of spec.archive."""

    run_id: RunId = Field("", description="Id of the run. A new value starts a restore; if empty, none runs.")
    url: ArchiveUrl | None = Field(
        None, description="Address of the archive to restore. If absent, that of spec.archive."
    )
    until: Annotated[str, Field(max_length=40)] | None = Field(
        None,
        description="Time (RFC 3339). Each partition is restored up to its first record that is later. If absent, all.",
    )
    foreign_records: ForeignRecordPolicy = Field(
        ForeignRecordPolicy.REFUSE,
        description="Policy for target topics that contain records of other producers: Refuse or Accept.",
    )
    compare: bool = Field(True, description="Whether the target is compared with the archive at the end.")
