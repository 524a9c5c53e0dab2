"""All error classes of the replicator.

A SettingError stops a start. A ClusterError says that a whole cluster cannot be used now, an IdentityError that the flow may
not write to its target. A PartitionError stops one partition; the others continue.

Each message is one sentence that names the setting, topic, partition or broker, and what to do. Facts that callers need are
attributes. No error contains a secret or record data.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

KEPT_ON_COPY = (
    "list the setting in topics.configs.exceptions (mirrorflow.config.properties.exclude.by.topic), or the next config sync "
    "reverts it"
)


# Where a flow's source gets its alias: in the resource, in properties, and at the command line.
ALIAS_SETTINGS = "spec.source.alias, source.cluster.alias or --from-alias"
# The advice for a topic whose replicas are not in sync; the clause before it names them.
FEW_REPLICAS = "if it has fewer of them (replication.factor) than its min.insync.replicas, give it more, or lower that setting"


def accept_or_skip(change: str) -> str:
    """Returns the advice for records that a copy refuses: *change* its settings, or leave the records out."""
    return f"{change}, or leave such records out with mirrorflow.refused.records=skip; {KEPT_ON_COPY}"


class MirrorFlowError(Exception):
    """Base class. `reason` is a stable PascalCase word for status and metrics; `retriable`: a retry may succeed."""

    reason: ClassVar[str] = "Failed"
    retriable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the sentence and the facts: most constructors take other arguments than the sentence."""
        return _rebuilt, (type(self), *self.args), self.__dict__


def _rebuilt(kind: type[MirrorFlowError], *args: object) -> MirrorFlowError:
    return kind.__new__(kind, *args)


class SettingError(MirrorFlowError):
    """A property is invalid; nothing was started."""

    reason = "InvalidSettings"


class InvalidSettingError(SettingError):
    """The value of *key* is invalid, or contradicts another setting."""

    def __init__(self, *, key: str, problem: str, action: str | None = None) -> None:
        self.key = key
        self.problem = problem
        super().__init__(f"{key}: {problem}" + ("." if action is None else f"; {action}."))


class FileMissingError(InvalidSettingError):
    """*key* names a file that does not exist; `path` is its full path."""

    def __init__(self, *, key: str, path: str) -> None:
        self.path = path
        super().__init__(key=key, problem=f"{path} cannot be read: No such file or directory")


class RefusedSettingError(SettingError):
    """*key* needs a feature that only Java processes have."""

    reason = "RefusedSettings"

    def __init__(self, *, key: str, why: str) -> None:
        self.key = key
        super().__init__(f"{key} is refused: {why}.")


class UnresolvedReferenceError(SettingError):
    """A ${provider:path:key} in *key* cannot be resolved on this host; the value is never shown.

    *cluster* is the alias of the cluster whose client has the key; None for any other key.
    """

    reason = "SecretMissing"

    def __init__(self, *, key: str, reference: str, problem: str, cluster: str | None = None) -> None:
        self.key = key
        self.reference = reference
        self.problem = problem
        whose = "" if cluster is None else f" of cluster {cluster}"
        super().__init__(f"{key}{whose}: the reference {reference} cannot be resolved: {problem}.")


class InvalidOffsetsError(MirrorFlowError):
    """A list of offsets is invalid. `problems` has a sentence for each invalid line."""

    reason = "InvalidOffsets"

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class ClusterError(MirrorFlowError):
    """A whole cluster cannot be used now. `cluster` is its alias."""

    reason = "ClusterFailed"

    def __init__(self, sentence: str, *, cluster: str) -> None:
        self.cluster = cluster
        super().__init__(sentence)


class UnreachableError(ClusterError):
    """No broker of *cluster* answers at *addresses*."""

    reason = "Unreachable"
    retriable = True

    def __init__(self, *, cluster: str, addresses: str, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"Cluster {cluster} cannot be reached at {addresses}: {problem}; "
            "check the address, the network, and that the listener uses the configured security.protocol.",
            cluster=cluster,
        )


class ConnectionLostError(UnreachableError):
    """One connection ended; unanswered requests may or may not have been carried out."""

    reason = "ConnectionLost"

    def __init__(self, *, cluster: str, address: str, problem: str) -> None:
        super().__init__(cluster=cluster, addresses=address, problem=problem)


class MissingMarkerError(ClusterError):
    """The log of an internal topic lacks the marker of a transaction that has ended."""

    reason = "MissingMarker"
    retriable = True

    def __init__(self, *, cluster: str, partitions: str) -> None:
        super().__init__(
            f"Cluster {cluster} has no marker of the last transaction of the flow in {partitions}, which probably had no leader when "
            "it was due (KAFKA-20734); it is decided when the task or the process starts again.",
            cluster=cluster,
        )


class AuthenticationFailedError(ClusterError):
    """TLS or SASL authentication failed. Retriable, because credentials can rotate without a restart."""

    reason = "AuthenticationFailed"
    retriable = True

    def __init__(self, *, cluster: str, address: str, mechanism: str, problem: str) -> None:
        super().__init__(
            f"Cluster {cluster} at {address}: {mechanism} authentication failed: {problem}; check the credentials and certificates.",
            cluster=cluster,
        )


class NotAuthorizedError(ClusterError):
    """An ACL is missing."""

    reason = "NotAuthorized"
    retriable = True

    def __init__(self, *, cluster: str, operation: str, resource: str) -> None:
        self.operation = operation
        self.resource = resource
        super().__init__(
            f"Cluster {cluster} does not authorize {operation} on {resource}; "
            "`mirrorflow acls` prints the ACLs that the flow needs.",
            cluster=cluster,
        )


class UnsupportedBrokerError(ClusterError):
    """The brokers of *cluster* do not support *feature*."""

    reason = "UnsupportedBroker"

    def __init__(self, *, cluster: str, feature: str, needs: str) -> None:
        super().__init__(
            f"The brokers of cluster {cluster} do not offer {feature}; it needs {needs}.", cluster=cluster
        )


class ShortTransactionsError(ClusterError):
    """The coordinators of *cluster* do not let a transaction last for *timeout_ms*."""

    reason = "ShortTransactions"

    def __init__(self, *, cluster: str, timeout_ms: int) -> None:
        super().__init__(
            f"Cluster {cluster} refuses transactions of {timeout_ms} ms; "
            "raise transaction.max.timeout.ms of its brokers, by default 900000.",
            cluster=cluster,
        )


class OffsetSyncsMissingError(ClusterError):
    """The offset-syncs topic, which checkpoints need, does not exist (yet)."""

    reason = "OffsetSyncsMissing"
    retriable = True

    def __init__(self, *, cluster: str, topic: str) -> None:
        super().__init__(
            f"Cluster {cluster} has no topic {topic}; the flow's source connector creates it: "
            "check that it is running, with emit.offset-syncs.enabled=true and the same offset-syncs.topic.location.",
            cluster=cluster,
        )


class InternalTopicUnavailableError(ClusterError):
    """A topic of the flow's own cannot be written: partition *leaderless* has no leader; None: the topic was deleted."""

    reason = "InternalTopicUnavailable"
    retriable = True

    def __init__(self, *, cluster: str, topic: str, leaderless: int | None = None) -> None:
        problem = (
            "is missing; the connector creates it again within a minute"
            if leaderless is None
            else f"has no leader for partition {leaderless}; start the brokers that hold its replicas"
        )
        super().__init__(
            f"Topic {topic} of cluster {cluster}, which is the flow's own, {problem}.", cluster=cluster
        )


class GroupNotMovedError(ClusterError):
    """Some or all offsets of one target group were not committed."""

    reason = "GroupNotMoved"
    retriable = True

    def __init__(self, *, cluster: str, group: str, why: str) -> None:
        super().__init__(
            f"Offsets of group {group} were not committed on cluster {cluster}: {why}.", cluster=cluster
        )


class BrokerError(ClusterError):
    """Any other broker error, with its code and name (Kafka protocol, error codes)."""

    reason = "BrokerError"

    def __init__(
        self,
        *,
        cluster: str,
        request: str,
        code: int,
        name: str,
        subject: str | None = None,
        retriable: bool = False,
        advice: str | None = None,
    ) -> None:
        self.code = code
        self.retriable = retriable
        about = "" if subject is None else f" for {subject}"
        then = "" if advice is None else f"; {advice}"
        super().__init__(
            f"{request}{about} failed on cluster {cluster}: {name} ({code}){then}.", cluster=cluster
        )


class RegistryError(MirrorFlowError):
    """A schema registry cannot be used as requested. `registry` is the alias of its cluster."""

    reason = "RegistryFailed"
    retriable = True

    def __init__(self, sentence: str, *, registry: str) -> None:
        self.registry = registry
        super().__init__(sentence)


class RegistryUnreachableError(RegistryError):
    """The schema registry does not answer at *url*."""

    reason = "RegistryUnreachable"

    def __init__(self, *, registry: str, url: str, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"The schema registry of {registry} cannot be reached at {url}: {problem}; check the URL, the network and its TLS settings.",
            registry=registry,
        )


class RegistryDeniedError(RegistryError):
    """The schema registry refuses the credentials, or what they may do."""

    reason = "RegistryDenied"

    def __init__(self, *, registry: str, request: str, status: int) -> None:
        super().__init__(
            f"The schema registry of {registry} denied {request} (HTTP {status}); check the credentials, and that they may read all "
            "subjects, and on the target also write subjects, modes and compatibility.",
            registry=registry,
        )


class RegistryRefusedError(RegistryError):
    """The schema registry answered *request* with an error."""

    reason = "RegistryRefused"

    def __init__(self, *, registry: str, request: str, status: int, message: str, others: int = 0) -> None:
        self.status = status
        self._request, self._message = request, message
        why = f": {message}" if message else ""
        more = f" {others} more were refused, or refer to one that was." if others else ""
        super().__init__(
            f"The schema registry of {registry} refused {request} (HTTP {status}){why}.{more}",
            registry=registry,
        )

    def with_others(self, others: int) -> "RegistryRefusedError":
        """Returns the same error, which names the number of *others* that were refused in the same pass, or refer to one."""
        return RegistryRefusedError(
            registry=self.registry,
            request=self._request,
            status=self.status,
            message=self._message,
            others=others,
        )


class IdsNotKeptError(RegistryError):
    """The target registry has registered a schema under another id than requested."""

    reason = "IdsNotKept"

    def __init__(self, *, registry: str, subject: str, wanted: int, found: object) -> None:
        super().__init__(
            f"The schema registry of {registry} gave {subject} the id {found} instead of {wanted}: it does not support mode IMPORT. "
            "Nothing more is written; use a registry that does, or remove spec.schemas (source.cluster.schema.registry.url).",
            registry=registry,
        )


class FilesDifferError(MirrorFlowError):
    """The group runs *connectors* with other settings than this node's files."""

    reason = "FilesDiffer"

    def __init__(self, connectors: tuple[str, ...]) -> None:
        self.connectors = connectors
        super().__init__(
            f"{', '.join(connectors)}: this node's files differ from the group's settings; use the same files on all nodes."
        )


class IdentityError(MirrorFlowError):
    """The flow may not write to this target."""

    reason = "IdentityRefused"


class FlowExistsError(IdentityError):
    """Another flow owns this source alias on this target."""

    reason = "FlowExists"

    def __init__(
        self, *, source: str, target: str, owner: str, claimant: str, process: str | None = None
    ) -> None:
        """*process*: the last one that claimed the flow *owner* and has not left; None if there is none, or it is not known."""
        runs = "" if process is None else f" (last claimed by {process})"
        super().__init__(
            f"Target {target} already receives source {source} from flow {owner}; this flow is {claimant}. "
            f"Stop the other flow{runs} and name it in spec.takeOverFrom (mirrorflow.takeover.from), or give this source another alias "
            f"({ALIAS_SETTINGS})."
        )


class ClusterChangedError(IdentityError):
    """Another cluster answers at a known address."""

    reason = "ClusterChanged"

    def __init__(self, *, alias: str, expected: str, found: str) -> None:
        super().__init__(
            f"Cluster {alias} was {expected} and is now {found}; "
            "if this is intended, give it another alias, so that a new flow begins."
        )


class SameClusterError(IdentityError):
    """Source and target are one cluster, and the flow would copy its own copies. *topic* None: all of them."""

    reason = "SameCluster"

    def __init__(
        self, *, source: str, target: str, cluster_id: str, topic: str | None = None, copy: str | None = None
    ) -> None:
        what = "each topic would be copied onto itself"
        if topic is not None:
            what = f"topic {topic} would be copied " + (
                "onto itself" if copy == topic else f"to {copy}, and that again"
            )
        super().__init__(
            f"{source} and {target} are one cluster ({cluster_id}): {what}, without end. Correct the addresses of one of them, "
            "or use naming policy Prefix (replication.policy.class=DefaultReplicationPolicy)."
        )


class FlowTakenError(IdentityError):
    """The process has lost the flow; it waits until it may take it again."""

    reason = "FlowTaken"
    retriable = True

    def __init__(self, *, source: str) -> None:
        super().__init__(
            f"This process no longer owns the flow from {source}: another process has taken it, or the target has expired its "
            "transactional ids. It retries when the flow is free."
        )


class FlowEndedError(IdentityError):
    """A switchover has ended the flow; with *is_opposite*, the one in the opposite direction. `switchover` is its id."""

    reason = "FlowEnded"

    def __init__(self, *, source: str, target: str, switchover: str, is_opposite: bool = False) -> None:
        self.switchover = switchover
        why = (
            f"Switchover {switchover} has ended the flow from {target} to {source}, and has not started the one from {source} to {target}"
            if is_opposite
            else f"The flow from {source} to {target} was ended by switchover {switchover}, or is held until that starts it"
        )
        super().__init__(
            f"{why}; nothing is copied to {target} until that switchover has started it or is rolled back, or a later one back to {source} is complete. "
            "After an unplanned switchover, `mirrorflow diverged start-back` starts the flow."
        )


class FlowNotStartedError(IdentityError):
    """A switchover should have started the flow for the first time, and was rolled back."""

    reason = "FlowNotStarted"

    def __init__(self, *, source: str, target: str, switchover: str) -> None:
        super().__init__(
            f"Switchover {switchover}, which should have started the flow from {source} to {target}, was rolled back. Stop this "
            f"process: {target} is still the active member, and this flow would copy back what {source} has from there. Only if the "
            f"flow is to run without a switchover, delete the topic mm2-claims.{source}.internal of {target}, and start it again."
        )


class StartConflictError(IdentityError):
    """The stored positions of a flow contradict where a switchover has to start it. `partitions`: those, with both offsets."""

    reason = "StartConflict"

    def __init__(self, *, source: str, target: str, partitions: Mapping[str, str]) -> None:
        """*partitions* has a clause for each partition."""
        self.partitions = dict(partitions)
        (name, why), *others = sorted(self.partitions.items())
        more = f" (and {len(others)} more)" if others else ""
        super().__init__(
            f"The flow from {source} to {target} cannot start where the switchover needs it: {name} {why}{more}. If {target} "
            "needs none of the records between, reset the stored offsets of that flow and repeat the switchover."
        )


class FlowInUseError(IdentityError):
    """The stored offsets of a flow cannot be changed, because another process owns it."""

    reason = "FlowInUse"

    def __init__(self, *, source: str) -> None:
        super().__init__(
            f"Another process owns the flow from {source} and stores offsets of its own. Stop it, then repeat this."
        )


class FlowUnfencedError(IdentityError):
    """A seed, a restore or a switchover must own the flow, and the target does not allow it."""

    reason = "FlowUnfenced"

    def __init__(self, *, source: str, why: str) -> None:
        super().__init__(
            f"A seed, restore or switchover of the flow from {source} must be its only writer, but {why}; if an ACL is missing, `mirrorflow acls` prints it."
        )


class StartPendingError(MirrorFlowError):
    """A task waits for long to become the writer of its partitions."""

    reason = "StartPending"
    retriable = True

    def __init__(self, *, target: str, waits_s: float) -> None:
        super().__init__(
            f"The task has waited for {waits_s:g} s to fence the previous writer. Most often cluster {target} has unfinished "
            "transactions of the flow, or has forgotten the writer's transactional id and has yet to close its connections. Check it "
            "for partitions without a leader and hanging transactions (`kafka-transactions.sh find-hanging`)."
        )


class TaskEndedError(MirrorFlowError):
    """A task's process has ended by itself, or was killed by its worker. *why* says which, without a capital and a full stop."""

    reason = "TaskEnded"
    retriable = True

    def __init__(self, *, why: str) -> None:
        super().__init__(f"{why}; it is started again")


class TaskNotStartedError(MirrorFlowError):
    """The operating system refuses to start a task's process."""

    reason = "TaskNotStarted"
    retriable = True

    def __init__(self, *, task: int, problem: str) -> None:
        super().__init__(
            f"The process of task {task} cannot be started: {problem}. Raise the limit that the pod, the user or the machine has "
            "reached (of processes, memory or open files), or give the connector fewer tasks (tasks.max). It is tried again."
        )


class TaskSilentError(MirrorFlowError):
    """A task's process runs, and reports nothing or none of its partitions, so nothing is known of them."""

    reason = "TaskSilent"
    retriable = True

    def __init__(self, *, task: int, pid: int | None, silent_s: float) -> None:
        named = "" if pid is None else f" (pid {pid})"
        super().__init__(
            f"The process of task {task}{named} has reported nothing of its partitions for {silent_s:g} s and has not ended: it is "
            "stopped, or waits for CPU, memory or a disk. Check the machine, or restart the task; what it has copied since is not known."
        )


class CorruptRecordsError(MirrorFlowError, ValueError):
    """Bytes are not valid records. Callers that know the partition raise CorruptBatchError instead."""

    reason = "CorruptBatch"

    def __init__(self, problem: str) -> None:
        super().__init__(f"Invalid records from the source: {problem}.")


class DecompressedSizeError(CorruptRecordsError):
    """Compressed data holds more than the *max_bytes* that the caller allows; it may be intact."""

    def __init__(self, *, codec: str, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        super().__init__(f"{codec} data holds more than {max_bytes} bytes")


class PartitionError(MirrorFlowError):
    """One partition stops; the others continue. `topic` is its name on the source."""

    reason = "PartitionFailed"

    def __init__(self, sentence: str, *, topic: str, partition: int) -> None:
        super().__init__(f"{topic}-{partition}: {sentence}.")


class RecordTooLargeError(PartitionError):
    """The target refuses a batch for its size."""

    reason = "RecordTooLarge"

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        offset: int,
        size_bytes: int,
        target_topic: str,
        then: str | None = None,
    ) -> None:
        self.offset = offset
        self.size_bytes = size_bytes
        if then is None:
            then = f"raise max.message.bytes of {target_topic} (or message.max.bytes of its brokers)"
        taken = f"takes {size_bytes} bytes, more than the target allows"
        sentence = f"the record at source offset {offset} {taken}; {then}; {KEPT_ON_COPY}"
        super().__init__(sentence, topic=topic, partition=partition)


class CorruptBatchError(PartitionError):
    """A source batch fails its checksum."""

    reason = "CorruptBatch"

    def __init__(self, *, topic: str, partition: int, offset: int, problem: str) -> None:
        self.offset = offset
        sentence = (
            f"the batch at source offset {offset} is corrupt ({problem}); it is not copied. "
            "Check the source broker's disk, or delete the records up to there"
        )
        super().__init__(sentence, topic=topic, partition=partition)


class UnsupportedBatchError(PartitionError):
    """A batch has a format that cannot be copied."""

    reason = "UnsupportedBatch"

    def __init__(self, *, topic: str, partition: int, offset: int, problem: str) -> None:
        sentence = f"the batch at source offset {offset} cannot be copied: {problem}"
        super().__init__(sentence, topic=topic, partition=partition)


class SourceDataLostError(PartitionError):
    """Records were deleted, truncated or re-created before they were copied. *then*: what to do, or what was done."""

    reason = "SourceDataLost"

    def __init__(
        self, *, topic: str, partition: int, wanted: int, found: int, how: str, then: str | None = None
    ) -> None:
        self.wanted, self.found = wanted, found
        if then is None:
            then = f"set mirrorflow.source.loss.policy=alert to continue at {found}, or restart to copy the partition again"
        sentence = f"{how}: the next offset to copy was {wanted}, the source has {found}; {then}"
        super().__init__(sentence, topic=topic, partition=partition)


class TargetDataLostError(PartitionError):
    """The target topic was re-created, or lost more than can be refilled."""

    reason = "TargetDataLost"

    def __init__(
        self, *, topic: str, partition: int, target_topic: str, how: str, then: str | None = None
    ) -> None:
        if then is None:
            then = "set mirrorflow.source.loss.policy=alert to copy what follows, or restart to copy the partition again"
        super().__init__(f"target topic {target_topic} {how}; {then}", topic=topic, partition=partition)


class SourceUnavailableError(PartitionError):
    """No broker of the source serves the partition now. *problem* names what is wrong, and what to do."""

    reason = "SourceNotAnswering"
    retriable = True

    def __init__(self, *, topic: str, partition: int, problem: str) -> None:
        super().__init__(problem, topic=topic, partition=partition)


class TargetUnavailableError(PartitionError):
    """No broker of the target serves the partition's copy now. *problem* names what is wrong, and what to do."""

    reason = "TargetNotAnswering"
    retriable = True

    def __init__(self, *, topic: str, partition: int, problem: str) -> None:
        super().__init__(problem, topic=topic, partition=partition)


class TargetOutOfSyncError(PartitionError):
    """The target would refuse writes to the partition's copy: too few replicas are in sync."""

    reason = "WritesRefused"
    retriable = True

    def __init__(self, *, topic: str, partition: int, copy: str) -> None:
        sentence = f"too few replicas of {copy} are in sync (NOT_ENOUGH_REPLICAS); bring the replicas of {copy} back in sync; {FEW_REPLICAS}"
        super().__init__(sentence, topic=topic, partition=partition)


class TargetTakenError(PartitionError):
    """Another source topic was copied into that target topic."""

    reason = "TargetTaken"

    def __init__(self, *, topic: str, partition: int, target_topic: str, owner: str) -> None:
        sentence = f"target topic {target_topic} already holds the copy of {owner}; rename one of the copies"
        super().__init__(sentence, topic=topic, partition=partition)


class TopicGoneError(PartitionError):
    """The topic no longer exists."""

    reason = "TopicGone"

    def __init__(self, *, topic: str, partition: int, cluster: str) -> None:
        self.cluster = cluster
        sentence = f"the topic no longer exists on cluster {cluster}"
        super().__init__(sentence, topic=topic, partition=partition)
