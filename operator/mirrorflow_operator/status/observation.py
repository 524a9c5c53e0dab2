"""Defines the observed state of one MirrorFlow, from which `assess` computes the status.

The reconciler fills it, with the poller's readings. It holds values of one moment. Times are seconds since
1970, by the operator's clock (`now_s`) or by Kubernetes' timestamps. A fact that was not observed is None or
absent, never a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.errors import FieldError
from mirrorflow_operator.plan.rollouts import ObservedDeployment
from mirrorflow_operator.plan.spark_applications import run_name_of
from mirrorflow_operator.plan.spark_run import NO_RUNS, RunKind, Runs
from mirrorflow_operator.settings import SETTLE_S
from mirrorflow_operator.status.conditions import Problem
from mirrorflow_operator.status.pod_reports import PollFailure, Reading, Summary

FRESH_S = 100.0  # three polls and their jitter: an older reading does not describe the current state

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A MirrorFlow as stored in the cluster.

    `flow` is None where the spec is unreadable; `errors` say why. `newer_fields`: warnings about fields of a newer CRD.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    created_s: float
    flow: MirrorFlow | None = None
    errors: tuple[FieldError, ...] = ()
    newer_fields: tuple[FieldError, ...] = ()
    is_reconciliation_paused: bool = False  # by `names.PAUSE_ANNOTATION`
    # The pair whose other member is active, so that the flow is stopped; None: its spec decides.
    stopped_by: str | None = None
    held_by: tuple[str, ...] = ()  # finalizers that delay its deletion; empty where it is not being deleted
    status: Status = field(default_factory=Status)  # empty where there is no readable status

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a flow is accepted, and what the operator runs of it.

    `refusal`: None where the flow is accepted. `version`: the replicator's, "" where unknown. `flow_id`: the id
    with which the flow claims its source alias. `has_conflict`: the flow conflicts with another one, so its
    Deployments are scaled down and none are created.
    """

    flow: MirrorFlow | None
    version: str = ""
    flow_id: str = ""
    refusal: Problem | None = None
    has_conflict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """A warning about a pod: FailedMount, FailedScheduling, Failed, BackOff ..."""

    reason: str
    message: str
    last_seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """One pod of a connector: the state of its one container, its events and its last reading.

    None: Kubernetes reports no such reason or message.
    """

    name: str
    uid: str = ""
    phase: str = "Pending"
    ready: bool = False
    ip: str | None = None  # None: not assigned yet
    connectors: tuple[str, ...] = ()  # the connectors that it runs, as `ConnectorKind` names them
    is_secure: bool = False  # it serves TLS
    deleting: bool = False
    image: str = ""
    created_s: float = 0.0
    started_s: float | None = None  # of the running container
    restarts: int = 0
    waiting_reason: str | None = None  # ImagePullBackOff, CreateContainerConfigError, CrashLoopBackOff ...
    waiting_message: str | None = None
    terminated_reason: str | None = None  # of the last container that ended: OOMKilled, Error ...
    terminated_message: str | None = None
    exit_code: int | None = None
    unscheduled_message: str | None = None  # of the condition PodScheduled=False
    is_disrupted: bool = False  # Kubernetes ends it: a drained node, a preemption
    template_hash: str | None = None  # identifies the template, as the Deployment controller labels it
    events: tuple[PodEvent, ...] = ()
    reading: Reading | None = None  # None: not polled yet

    @property
    def is_alive(self) -> bool:
        """Whether its process runs, or will."""
        return self.phase not in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedConnector:
    """One connector with its Deployment (None: not created yet) and its pods, possibly shared with others."""

    kind: ConnectorKind
    deployment: ObservedDeployment | None = None
    pods: tuple[ObservedPod, ...] = ()  # their readings are of this connector
    host: ConnectorKind | None = None  # the connector whose spec configures the pod; None: its own
    is_moving: bool = False  # between two Deployments (`rollouts.is_moving`)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAttempt:
    """A SparkApplication: one attempt of a run, or the one of a scheduled time."""

    name: str
    kind: RunKind
    number: int | None = None  # None: a schedule created it
    failures: int = 0  # of the attempts before it that count
    uid: str = ""
    run_id: str = ""
    created_s: float = 0.0
    started_s: float | None = None  # submitted to Kubernetes; set again after each pause
    ended_s: float | None = None
    state: str = ""  # as Kubeflow's Spark operator names it; "" until it has taken the application
    message: str | None = None  # of an error
    suspended: bool = False
    queue: str | None = None
    pods: tuple[ObservedPod, ...] = ()  # its drivers


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """The Job of one run and its drivers; `outcome` is Kubernetes' Complete or Failed, None until then.

    With the launcher SparkApplication it is the run with all its attempts (`spark_attempts.job_of_attempts`).
    """

    name: str
    kind: RunKind
    uid: str = ""
    run_id: str = ""  # "" as in a spec without a run: started by the schedule
    created_s: float = 0.0
    started_s: float | None = None  # set again after each pause
    ended_s: float | None = None
    outcome: str | None = None
    reason: str | None = None  # of the outcome, as below
    message: str | None = None
    suspended: bool = False
    queue: str | None = None  # of Kueue, which alone suspends and resumes the Job then
    pods: tuple[ObservedPod, ...] = ()
    events: tuple[PodEvent, ...] = ()  # of the Job itself, where it has no pods
    attempts: tuple[ObservedAttempt, ...] = ()  # of SparkApplications, oldest first; empty for a Job
    retry_at_s: float | None = None  # when the next attempt is due; None where none is

    @property
    def run_name(self) -> str:
        """The name of the run, which its attempts share; that of the Job."""
        return run_name_of(self.name) if self.attempts else self.name

    @property
    def object_names(self) -> tuple[str, ...]:
        """The names of the Job, or of the SparkApplications."""
        return tuple(attempt.name for attempt in self.attempts) or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """Since when a condition's finding has had `status`, and since when it has not been True.

    Both count findings, not the status written to the resource.
    """

    status: str
    since_s: float
    untrue_since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessmentMemory:
    """What `assess` needs again with the flow's next observation.

    It is kept in memory: in the status it would cause a write at every pass. A restarted operator, which has
    lost it, keeps each condition of the status until another finding has held for the full time.
    """

    since: Mapping[str, Since] = field(default_factory=dict)  # by type of condition


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedObject:
    """An object of the plan that could not be written in this pass, and why.

    `part`: its connector or Spark job; None where it belongs to the flow. `is_taken`: an object of its name has
    another owner. `is_kind_missing`: the cluster has no such kind, or the operator may not read it. `is_final`: only a change of the spec or of the cluster can help. `is_absent`: the flow has no such object
    yet; otherwise an earlier version stays. `is_config`: it has the properties of pods.
    """

    name: str  # its kind and name
    message: str
    part: str | None = None
    is_taken: bool = False
    is_kind_missing: bool = False
    is_final: bool = False
    is_absent: bool = False
    is_config: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything known about a flow at `now_s`."""

    resource: Resource
    admission: Admission  # from `admission.admit`; the plan is based on it
    now_s: float
    connectors: tuple[ObservedConnector, ...] = ()  # those that are planned or still exist
    memory: AssessmentMemory = field(default_factory=AssessmentMemory)
    settle_s: float = SETTLE_S
    fresh_s: float = FRESH_S  # the maximum age of a reading that is used
    jobs: tuple[ObservedJob, ...] = ()  # the flow's existing Spark jobs
    # When each CronJob was created, by the kind of its runs.
    schedules_created_s: Mapping[RunKind, float] = field(default_factory=dict)
    runs: Runs = NO_RUNS  # from `admission.due_jobs`; the plan is based on it
    refused: tuple[RefusedObject, ...] = ()  # by the API server, in this pass
    new_pods_only: bool = False  # readings of pods of an earlier spec do not count

    def connector(self, kind: ConnectorKind) -> ObservedConnector | None:
        return next((connector for connector in self.connectors if connector.kind is kind), None)

    def readings(self, observed: ObservedConnector | None) -> list[Reading]:
        """Returns the readings of the pods of *observed* that are not older than `fresh_s`."""
        pods = () if observed is None else new_pods(observed) if self.new_pods_only else observed.pods
        return [
            pod.reading
            for pod in pods
            if pod.reading is not None and self.now_s - pod.reading.read_at_s <= self.fresh_s
        ]

    @property
    def is_applied(self) -> bool:
        """Whether the API server has the objects of this spec."""
        return self.admission.flow is not None and not self.refused

    def summaries(self, observed: ObservedConnector | None) -> list[Summary]:
        """Returns the summaries among the fresh readings of *observed*."""
        return [reading.summary for reading in self.readings(observed) if reading.summary is not None]

    def poll_failure(self, observed: ObservedConnector | None) -> PollFailure | None:
        """Returns why the most recent of the failed polls failed; None if none did."""
        failed = [reading for reading in self.readings(observed) if reading.failure is not None]
        return max(failed, key=lambda reading: reading.read_at_s).failure if failed else None


def has_pods(observed: ObservedConnector) -> bool:
    """Whether a pod of the connector may still run."""
    return any(pod.is_alive for pod in observed.pods)


def has_outdated_pods(observed: ObservedConnector) -> bool:
    """Whether a pod of an earlier spec, or a terminating one, may still run."""
    running = [pod for pod in observed.pods if pod.is_alive]
    deployment = observed.deployment
    replaces = deployment is not None and (
        deployment.observed_generation < deployment.generation or deployment.replicas > deployment.updated
    )
    return any(pod.deleting for pod in running) or (bool(running) and (replaces or observed.is_moving))


def new_pods(observed: ObservedConnector) -> tuple[ObservedPod, ...]:
    """Returns the pods that were created from the Deployment's present template."""
    deployment = observed.deployment
    if deployment is None or observed.is_moving or deployment.observed_generation < deployment.generation:
        return ()
    running = tuple(pod for pod in observed.pods if pod.is_alive and not pod.deleting)
    if deployment.replicas <= deployment.updated:
        return running
    if not deployment.updated or len(running) < deployment.replicas:
        return ()  # the watch of pods is behind that of Deployments
    newest = max(running, key=lambda pod: pod.created_s, default=None)
    return tuple(pod for pod in running if newest is not None and pod.template_hash == newest.template_hash)


def is_rolling(observed: ObservedConnector) -> bool:
    """Whether the Deployment's rollout is not complete.

    After a complete rollout, pods that turn unready (a Kafka cluster is unreachable) do not count as one.
    """
    deployment = observed.deployment
    if deployment is None or observed.is_moving:
        return True
    was_complete = any(
        condition.type == "Progressing" and condition.reason == "NewReplicaSetAvailable"
        for condition in deployment.conditions
    )
    return (
        deployment.observed_generation < deployment.generation
        or deployment.updated < deployment.wanted
        or deployment.replicas > deployment.updated
        or (deployment.ready < deployment.wanted and not was_complete)
    )


def is_overdue(observed: ObservedConnector) -> bool:
    """Whether the rollout has exceeded the Deployment's progress deadline."""
    deployment = observed.deployment
    if deployment is None or deployment.observed_generation < deployment.generation:
        return False  # its conditions describe an earlier rollout
    return any(
        condition.type == "Progressing"
        and condition.status == "False"
        and condition.reason == "ProgressDeadlineExceeded"
        for condition in deployment.conditions
    )
