"""Defines a run of one kind of Spark job of a flow, and what all its objects share: names, retries, exit statuses. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from mirrorflow_operator.api.spark_workloads import SparkJob, SparkLauncher
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.pod_template import Mounts, mounts
from mirrorflow_operator.plan.properties import ConnectorPlan
from mirrorflow_operator.settings import SEED_ACCOUNT

SCHEDULED: Final = "scheduled"  # in place of a runId
FOLLOWING: Final = "following"  # in place of a runId: the export of spec.archive.follow, which has no end
RUN_ID_ANNOTATION: Final = "mirrorflow.io/run-id"
# Retries after a driver failed; disruptions do not count. The backoff is 10 s, 20 s ... 5 min (Kubernetes).
SEED_RETRIES: Final = 6
VERIFY_RETRIES: Final = 2
ARCHIVE_RETRIES: Final = 2  # the next export continues in any case
# Seconds after which a failed export that follows the source starts again. The log of its driver can be read meanwhile, and
# a job that fails at once costs some CPU seconds every ten minutes.
ARCHIVE_AGAIN_S: Final = 600.0
# Exit statuses of a driver (`mirrorflow_seed.errors`). A failed verification has another status than a difference.
EXIT_DIFFERENT, EXIT_USAGE, EXIT_STOPPED, EXIT_FAILED, EXIT_NOTHING_SELECTED = 1, 2, 3, 4, 5
ENDED_KEPT: Final = 3  # ended Jobs of each kind kept for their logs
Object = dict[str, Any]


class RunKind(Enum):
    """The purpose of a Spark job, by its name in the resource and in labels; `COMMANDS` has that of the command."""

    SEED = "seed"
    VERIFY = "verify"
    ARCHIVE = "archive"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a run that Kubeflow's Spark operator launches: its number from 1, and how many failures before it count."""

    number: int = 1
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The Spark jobs that should exist now. With none set, ended Jobs are kept and running ones deleted."""

    # The runs of spec.seed.runId and spec.restore.runId; no scheduled verification begins meanwhile.
    seed: bool = False
    restore: bool = False
    verify: bool = False  # the run of spec.verify.runId
    archive: bool = False  # the export of spec.archive.follow
    # The source connector has no pods, because a seed or a restore does its work.
    replaces_source: bool = False
    # Names of ended runs that are kept for their logs and until the status reports them: of Jobs, and as in `Attempt`.
    kept: frozenset[str] = frozenset()
    # The attempt of each run that should exist, by the run's name, where it is not the first.
    attempts: Mapping[str, Attempt] = field(default_factory=dict)


NO_RUNS: Final = Runs()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDefaults:
    """The operator's settings for Spark jobs; `image` includes the tag."""

    image: str
    account: str = SEED_ACCOUNT
    operator_namespace: str = ""  # that of `names.progress_readers`


# The commands of mirrorflow-seed, which also name the job in its reports.
COMMANDS: Final = {
    RunKind.SEED: "seed",
    RunKind.VERIFY: "verify",
    RunKind.ARCHIVE: "export",
    RunKind.RESTORE: "restore",
}
RETRIES: Final = {
    RunKind.SEED: SEED_RETRIES,
    RunKind.VERIFY: VERIFY_RETRIES,
    RunKind.ARCHIVE: ARCHIVE_RETRIES,
    RunKind.RESTORE: SEED_RETRIES,
}
# What a retry would only repeat. EXIT_FAILED is retried: a cluster or a folder may be usable again.
FINAL_EXITS: Final = {
    RunKind.SEED: (EXIT_USAGE, EXIT_NOTHING_SELECTED),
    RunKind.VERIFY: (EXIT_DIFFERENT, EXIT_USAGE, EXIT_NOTHING_SELECTED),
    RunKind.ARCHIVE: (EXIT_DIFFERENT, EXIT_USAGE, EXIT_NOTHING_SELECTED),
    RunKind.RESTORE: (EXIT_DIFFERENT, EXIT_USAGE, EXIT_NOTHING_SELECTED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRun:
    """One kind of job of one flow, with the inputs of its objects."""

    flow: MirrorFlow
    kind: RunKind
    job: SparkJob
    plan: ConnectorPlan
    defaults: SparkDefaults
    groups: dict[str, str]  # the groups whose offsets are archived and restored, as properties of the job

    @property
    def mounts(self) -> Mounts:
        """The Secrets and ConfigMaps that the source connector's pod mounts, too."""
        return mounts((self.plan.worker_properties, self.plan.connector_properties))

    @property
    def image(self) -> str:
        return self.job.image or self.defaults.image

    @property
    def labels(self) -> dict[str, str]:
        return names.run_labels(self.flow.metadata.name, self.kind.value)

    @property
    def queue_labels(self) -> dict[str, str]:
        """The label by which Kueue takes a Job into its queue; empty without a queue."""
        spark = self.flow.spec.spark
        return {} if spark is None or spark.queue is None else {names.QUEUE_LABEL: spark.queue}

    @property
    def is_application(self) -> bool:
        """Whether Kubeflow's Spark operator launches the driver."""
        spark = self.flow.spec.spark
        return spark is not None and spark.launcher is SparkLauncher.SPARK_APPLICATION

    @property
    def selector(self) -> dict[str, str]:
        return names.run_selector(self.flow.metadata.name, self.kind.value)

    def metadata(self, name: str, **more: Any) -> Object:
        return {"name": name, "namespace": self.flow.metadata.namespace, "labels": self.labels, **more}
