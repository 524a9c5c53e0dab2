"""All error classes of the replicator.

    MirrorFlowError
    ├── SettingError                 a property is invalid; nothing was started
    │   ├── InvalidSettingError      its value is invalid or contradicts another setting
    │   │   └── FileMissingError     it names a file that does not exist
    │   ├── RefusedSettingError      it needs a feature that only Java processes have
    │   └── UnresolvedReferenceError a ${provider:path:key} cannot be resolved on this host
    ├── ClusterError                 a whole cluster cannot be used now
    │   ├── UnreachableError         no broker answers (retriable)
    │   │   └── ConnectionLostError  one connection ended with requests unanswered
    │   ├── AuthenticationFailedError  TLS or SASL authentication failed
    │   ├── NotAuthorizedError       an ACL is missing
    │   ├── UnsupportedBrokerError   the brokers lack a needed feature
    │   ├── OffsetSyncsMissingError  the offset-syncs topic, which checkpoints need, is missing
    │   ├── GroupNotMovedError       offsets of one target group were not committed
    │   └── BrokerError              any other broker error, with its name and code
    ├── FilesDifferError             another node of the group has other connector files
    ├── IdentityError                the flow may not write here (docs/exactly-once.md)
    │   ├── FlowExistsError          another flow owns this source alias on this target
    │   ├── ClusterChangedError      another cluster answers at a known address
    │   ├── FlowNotMovedError        an earlier release has left the flow so that its end cannot be found
    │   ├── FlowUnfencedError        a job must own the flow, which the target does not allow
    │   └── FlowTakenError           the process has lost the flow
    ├── StartPendingError            a task waits for long to become the writer of its partitions (retriable)
    ├── CorruptRecordsError          bytes are not valid records; CorruptBatchError if the partition is known
    └── PartitionError               one partition stops; the others continue
        ├── RecordTooLargeError      the target refuses a batch for its size
        ├── CorruptBatchError        a source batch fails its checksum
        ├── UnsupportedBatchError    a batch format that cannot be copied
        ├── SourceDataLostError      records were deleted, truncated or re-created before they were copied
        ├── TargetDataLostError      the target topic was re-created or lost more than can be refilled
        ├── TargetTakenError         another source topic was copied into that target topic
        └── TopicGoneError           the topic no longer exists

Each message is one sentence that names the setting, topic, partition or broker, and what to do. The facts are
attributes. No error contains a secret or record data.
"""

from typing import ClassVar

KEPT_ON_COPY = (
    "name a setting of the copy in topics.configs.exceptions (mirrorflow.config.properties.exclude.by.topic), or the next "
    "sync of settings undoes it"
)


def accept_or_skip(change: str) -> str:
    """Returns the advice for records that a copy refuses: *change* its settings, or leave the records out."""
    return f"{change}, or leave such records out with mirrorflow.refused.records=skip; {KEPT_ON_COPY}"


# The advice for a topic whose replicas are not in sync; the clause before it names them.
FEW_REPLICAS = "if it has fewer of them (replication.factor) than its min.insync.replicas, give it more, or lower that setting"


class MirrorFlowError(Exception):
    """Base class. `reason` is a stable PascalCase word for status and metrics; `retriable`: a retry may succeed."""

    reason: ClassVar[str] = "Failed"
    retriable: bool = False


class SettingError(MirrorFlowError):
    """A property is invalid; nothing was started."""

    reason = "InvalidSettings"


class InvalidSettingError(SettingError):
    """The value of *key* is invalid, or contradicts another setting."""

    def __init__(self, *, key: str, problem: str, action: str = "") -> None:
        self.key = key
        self.problem = problem
        super().__init__(f"{key}: {problem}" + (f"; {action}." if action else "."))


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
        self.why = why
        super().__init__(f"{key} is refused: {why}.")


class UnresolvedReferenceError(SettingError):
    """A ${provider:path:key} in *key* cannot be resolved on this host; the value is never shown."""

    reason = "SecretMissing"

    def __init__(self, *, key: str, reference: str, problem: str) -> None:
        self.key = key
        self.reference = reference
        super().__init__(f"{key}: the reference {reference} cannot be resolved: {problem}.")


class ClusterError(MirrorFlowError):
    """A whole cluster cannot be used now. `cluster` is its alias."""

    reason = "ClusterFailed"
    cluster: str = ""


class UnreachableError(ClusterError):
    """No broker of *cluster* answers at *addresses*."""

    reason = "Unreachable"
    retriable = True

    def __init__(self, *, cluster: str, addresses: str, problem: str) -> None:
        self.cluster = cluster
        self.addresses = addresses
        self.problem = problem
        super().__init__(
            f"Cluster {cluster} cannot be reached at {addresses}: {problem}; "
            "check the address, the network and that the listener speaks the configured security.protocol."
        )


class ConnectionLostError(UnreachableError):
    """One connection ended; unanswered requests may or may not have been carried out."""

    reason = "ConnectionLost"

    def __init__(self, *, cluster: str, address: str, problem: str) -> None:
        super().__init__(cluster=cluster, addresses=address, problem=problem)


class AuthenticationFailedError(ClusterError):
    """TLS or SASL authentication failed. Retriable, because credentials can rotate without a restart."""

    reason = "AuthenticationFailed"
    retriable = True

    def __init__(self, *, cluster: str, address: str, mechanism: str, problem: str) -> None:
        self.cluster = cluster
        self.address = address
        self.mechanism = mechanism
        super().__init__(f"Cluster {cluster} at {address} refuses our {mechanism}: {problem}.")


class NotAuthorizedError(ClusterError):
    """An ACL is missing."""

    reason = "NotAuthorized"
    retriable = True

    def __init__(self, *, cluster: str, operation: str, resource: str) -> None:
        self.cluster = cluster
        self.operation = operation
        self.resource = resource
        super().__init__(
            f"Cluster {cluster} does not authorize {operation} on {resource}; "
            "`mirrorflow acls` prints the ACLs that the flow needs."
        )


class UnsupportedBrokerError(ClusterError):
    """The brokers of *cluster* do not support *feature*."""

    reason = "UnsupportedBroker"

    def __init__(self, *, cluster: str, feature: str, needs: str) -> None:
        self.cluster = cluster
        self.feature = feature
        super().__init__(f"The brokers of cluster {cluster} do not offer {feature}; it needs {needs}.")


class OffsetSyncsMissingError(ClusterError):
    """The offset-syncs topic, which checkpoints need, does not exist (yet)."""

    reason = "OffsetSyncsMissing"
    retriable = True

    def __init__(self, *, cluster: str, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        super().__init__(
            f"Cluster {cluster} has no topic {topic}; the flow's source connector creates it: "
            "see that it runs, with emit.offset-syncs.enabled=true and the same offset-syncs.topic.location."
        )


class GroupNotMovedError(ClusterError):
    """Some or all offsets of one target group were not committed."""

    reason = "GroupNotMoved"
    retriable = True

    def __init__(self, *, cluster: str, group: str, why: str) -> None:
        self.cluster = cluster
        self.group = group
        super().__init__(f"Group {group} of cluster {cluster} was not moved on: {why}.")


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
        subject: str = "",
        retriable: bool = False,
        advice: str = "",
    ) -> None:
        self.cluster = cluster
        self.request = request
        self.code = code
        self.name = name
        self.subject = subject
        self.retriable = retriable
        about = f" about {subject}" if subject else ""
        then = f"; {advice}" if advice else ""
        super().__init__(f"Cluster {cluster} answered {request}{about} with {name} ({code}){then}.")


class FilesDifferError(MirrorFlowError):
    """The group runs *connectors* with other settings than this node's files."""

    reason = "FilesDiffer"

    def __init__(self, connectors: tuple[str, ...]) -> None:
        self.connectors = connectors
        super().__init__(f"{', '.join(connectors)}: not as this node's files say; give all nodes the same.")


class IdentityError(MirrorFlowError):
    """The flow may not write to this target."""

    reason = "IdentityRefused"


class FlowExistsError(IdentityError):
    """Another flow owns this source alias on this target."""

    reason = "FlowExists"

    def __init__(self, *, source: str, target: str, owner: str, claimant: str) -> None:
        self.owner = owner
        super().__init__(
            f"Target {target} already receives source {source} from flow {owner}; this flow is {claimant}. "
            "Stop the other flow and name it in spec.takeOverFrom (mirrorflow.takeover.from), or give this source another alias."
        )


class ClusterChangedError(IdentityError):
    """Another cluster answers at a known address."""

    reason = "ClusterChanged"

    def __init__(self, *, alias: str, expected: str, found: str) -> None:
        self.alias = alias
        self.expected = expected
        self.found = found
        super().__init__(
            f"Cluster {alias} was {expected} and is now {found}; "
            "if that is intended, give it another alias so that a new flow begins."
        )


class FlowTakenError(IdentityError):
    """The process has lost the flow; it waits until it may take it again."""

    reason = "FlowTaken"
    retriable = True

    def __init__(self, *, source: str) -> None:
        super().__init__(
            f"The flow from {source} is no longer held by this process: another one has taken it, or the target has forgotten "
            "the transactional ids; it is taken again when nothing else holds it."
        )


class FlowNotMovedError(IdentityError):
    """A flow that an earlier release copied was killed, and its end cannot be found."""

    reason = "FlowNotMoved"

    def __init__(self, *, source: str, subject: str, problem: str) -> None:
        self.subject = subject
        super().__init__(
            f"The flow from {source} cannot continue as the earlier release has left it: {problem} ({subject}); start that "
            "release once more and stop it in an orderly way."
        )


class FlowUnfencedError(IdentityError):
    """A seed or a restore must own the flow, and the target does not allow it."""

    reason = "FlowUnfenced"

    def __init__(self, *, source: str, why: str) -> None:
        self.why = why
        super().__init__(f"A seed or restore of the flow from {source} must be its only writer, but {why}.")


class StartPendingError(MirrorFlowError):
    """A task waits for long to become the writer of its partitions."""

    reason = "StartPending"
    retriable = True

    def __init__(self, *, target: str, waits_s: float) -> None:
        self.waits_s = waits_s
        super().__init__(
            f"The task has waited for {waits_s:g} s to become the writer of its partitions: cluster {target} does not finish the "
            "last transactions of the flow; check that all its partitions have a leader, and its transaction coordinator "
            "(`kafka-transactions.sh find-hanging`)."
        )


class CorruptRecordsError(MirrorFlowError, ValueError):
    """Bytes are not valid records. Callers that know the partition raise CorruptBatchError instead."""

    reason = "CorruptBatch"

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"Bytes from the source are no records: {problem}.")


class PartitionError(MirrorFlowError):
    """One partition stops; the others continue. `topic` is its name on the source."""

    reason = "PartitionFailed"

    def __init__(self, sentence: str, *, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        super().__init__(f"{topic}-{partition}: {sentence}.")


class RecordTooLargeError(PartitionError):
    """The target refuses a batch for its size."""

    reason = "RecordTooLarge"

    def __init__(
        self, *, topic: str, partition: int, offset: int, size_bytes: int, target_topic: str, then: str = ""
    ) -> None:
        self.offset = offset
        self.size_bytes = size_bytes
        then = then or f"raise max.message.bytes of {target_topic} (or message.max.bytes of its brokers)"
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
        self.offset = offset
        sentence = f"the batch at source offset {offset} cannot be copied: {problem}"
        super().__init__(sentence, topic=topic, partition=partition)


class SourceDataLostError(PartitionError):
    """Records were deleted, truncated or re-created before they were copied. *then*: what to do, or what was done."""

    reason = "SourceDataLost"

    def __init__(
        self, *, topic: str, partition: int, wanted: int, found: int, how: str, then: str = ""
    ) -> None:
        self.wanted, self.found = wanted, found
        then = (
            then or "set mirrorflow.source.loss.policy=alert to go on from there, or restart to begin again"
        )
        sentence = f"{how}: offset {wanted} was to be copied next, the source now has {found}; {then}"
        super().__init__(sentence, topic=topic, partition=partition)


class TargetDataLostError(PartitionError):
    """The target topic was re-created, or lost more than can be refilled."""

    reason = "TargetDataLost"

    def __init__(self, *, topic: str, partition: int, target_topic: str, how: str, then: str = "") -> None:
        self.target_topic = target_topic
        then = (
            then
            or "set mirrorflow.source.loss.policy=alert to copy what follows, or restart to fill it again"
        )
        super().__init__(f"target topic {target_topic} {how}; {then}", topic=topic, partition=partition)


class TargetTakenError(PartitionError):
    """Another source topic was copied into that target topic."""

    reason = "TargetTaken"

    def __init__(self, *, topic: str, partition: int, target_topic: str, owner: str) -> None:
        sentence = f"{owner} was copied into {target_topic}; give this topic's copy another name"
        super().__init__(sentence, topic=topic, partition=partition)


class TopicGoneError(PartitionError):
    """The topic no longer exists."""

    reason = "TopicGone"

    def __init__(self, *, topic: str, partition: int, cluster: str) -> None:
        self.cluster = cluster
        sentence = f"the topic does not exist on cluster {cluster} any more"
        super().__init__(sentence, topic=topic, partition=partition)
