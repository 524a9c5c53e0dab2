"""What was seen of one MirrorFlow: the controller fills it, the poller its readings, and `assess` makes the status of it.

Values only, of one moment. Times are seconds since 1970 by the operator's clock (`now_s`) or by Kubernetes' own words.
What was not looked at, or cannot be reached, is None or absent, never a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_operator.assess.admission import Admission, Resource
from mirrorflow_operator.assess.progress import Reading
from mirrorflow_operator.assess.scaling import Scaling
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.plan.runs import NO_RUNS, RunKind, Runs
from mirrorflow_operator.settings import CALM_S, SETTLE_S

FRESH_S = 100.0  # three polls and their jitter: what was read before says nothing of now


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentCondition:
    """One of a Deployment's own conditions; `status` is Kubernetes' True, False or Unknown."""

    type: str  # Progressing, Available, ReplicaFailure
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSeen:
    """The workload of a connector, as the Deployment controller tells it."""

    name: str
    generation: int
    observed_generation: int = 0
    wanted: int = 1  # spec.replicas
    replicas: int = 0
    updated: int = 0
    ready: int = 0
    conditions: tuple[DeploymentCondition, ...] = ()
    image: str = ""
    form: str = ""  # as `plan.pod.FORMS` has it
    connectors: tuple[str, ...] = ()  # the words of those that its pods run
    selector: str = ""  # of its pods, as text


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """A warning about a pod: FailedMount, FailedScheduling, Failed, BackOff ..."""

    reason: str
    message: str
    last_seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod of a connector: its one container and what was said about it."""

    name: str
    uid: str = ""
    phase: str = "Pending"
    ready: bool = False
    ip: str = ""
    connectors: tuple[str, ...] = ()  # the words of those that it runs
    is_secure: bool = False  # it speaks TLS
    deleting: bool = False
    image: str = ""
    created_s: float = 0.0
    started_s: float | None = None  # of the container that runs now
    restarts: int = 0
    waiting_reason: str = ""  # ImagePullBackOff, CreateContainerConfigError, CrashLoopBackOff ...
    waiting_message: str = ""
    terminated_reason: str = ""  # of the last container that ended: OOMKilled, Error ...
    terminated_message: str = ""
    exit_code: int | None = None
    unscheduled_message: str = ""  # of the condition PodScheduled=False
    events: tuple[PodEvent, ...] = ()
    reading: Reading | None = None  # None: not polled yet

    @property
    def is_alive(self) -> bool:
        """Whether its process runs, or will."""
        return self.phase not in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSeen:
    """One connector that the plan wants: its Deployment (None: there is none yet) and its pods, which may be others', too."""

    kind: ConnectorKind
    deployment: DeploymentSeen | None = None
    pods: tuple[PodSeen, ...] = ()  # their readings are of this connector
    said_in: ConnectorKind | None = None  # of whom it is said what the pod is like; None: of itself
    is_moving: bool = False  # there is another Deployment whose pods run it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """The Job of one run, and its drivers; `outcome` is Kubernetes' Complete or Failed, "" as long as there is none."""

    name: str
    kind: RunKind
    uid: str = ""
    run_id: str = ""  # "": the schedule has begun it
    created_s: float = 0.0
    started_s: float | None = None  # anew after each pause
    ended_s: float | None = None
    outcome: str = ""
    reason: str = ""
    message: str = ""
    suspended: bool = False
    pods: tuple[PodSeen, ...] = ()
    events: tuple[PodEvent, ...] = ()  # of the Job itself, where it has no pods


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSeen:
    """The CronJob of a flow's verification."""

    created_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """A condition has been seen to have `status` since then, and not to be True, whatever the resource was told."""

    status: str
    since_s: float
    untrue_since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What `assess` wants to have back with the next observation of the flow.

    Kept in memory, not in the status, where it would be a heartbeat. Who has lost it (a restarted operator) keeps what the status
    says until things have been otherwise for as long as it takes: neither flapping nor lying.
    """

    since: Mapping[str, Since] = field(default_factory=dict)  # by type of condition
    scaling: Scaling | None = None  # where `autoscale` asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that is known of a flow at `now_s`."""

    resource: Resource
    admission: Admission  # as `assess.admission.admit` says, which the plan was made by
    now_s: float
    connectors: tuple[ConnectorSeen, ...] = ()  # those that the plan wants, or that are still there
    memory: Memory = field(default_factory=Memory)
    settle_s: float = SETTLE_S
    fresh_s: float = FRESH_S  # how long a reading is believed
    calm_s: float = CALM_S  # as `scaling` has it
    jobs: tuple[JobSeen, ...] = ()  # those of this flow's Spark jobs that are there
    schedule: ScheduleSeen | None = None
    runs: Runs = NO_RUNS  # as `assess.runs` has decided, which the plan was made by
    # What a write to the cluster was refused with ("exceeded quota ..."), said to whoever reads the status; "" for none.
    refusal: str = ""
