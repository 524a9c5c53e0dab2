"""Checks which requests a target offers, and says what follows for a flow where one is missing; changes nothing.

Services that speak Kafka's protocol leave requests out of ApiVersions, or list them and refuse them. So each capability
is looked up in the versions of every broker, and then tried by a request that changes nothing. A missing permission is not a
missing capability: `check_permissions` reports it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mirrorflow_cli.output import Findings
from mirrorflow_core.errors import BrokerError, NotAuthorizedError, UnreachableError, UnsupportedBrokerError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.topic_acls import TOPIC
from mirrorflow_core.wire.error_codes import SECURITY_DISABLED, error_for
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.producer_transactions import SHORTEST_TRANSACTION_MS

TRANSACTIONS, IDEMPOTENCE, EPOCHS, PRODUCERS = (
    "transactions",
    "idempotent writes",
    "leader epochs",
    "producer states",
)
READ_SETTINGS, CHANGED_SETTINGS = "reading settings", "changing settings"
ACLS, PARTITIONS = "ACLs", "more partitions"
# What no flow can do without: missing, it is a problem.
NEEDED = frozenset({IDEMPOTENCE, EPOCHS, READ_SETTINGS})
Probe = Callable[[Cluster], Awaitable[None]]
# A broker setting that every release has.
PROBED_SETTING = "log.dirs"
# Topics of the brokers themselves, which a client may not describe the producers of.
BROKER_TOPICS_PREFIX = "__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What a target may lack. `requests` is API key -> name; `without` is the clause that says what follows."""

    name: str
    requests: Mapping[int, str]
    without: str
    probe: Probe | None = None


async def _try_idempotence(target: Cluster) -> None:
    """Takes a producer id that nothing uses. Raises ClusterError."""
    await admin.init_producer_id(target, None, timeout_ms=SHORTEST_TRANSACTION_MS)


async def _try_producers(target: Cluster) -> None:
    """Describes the producers of one partition; does nothing if the target has no topic yet. Raises ClusterError."""
    topics = await admin.list_topics(target)
    names = (name for name, topic in sorted(topics.items()) if not topic.error and topic.partitions)
    name = next((name for name in names if not name.startswith(BROKER_TOPICS_PREFIX)), None)
    if name is None:
        return
    partition = TopicPartition(name, 0)
    code = (await admin.describe_producers(target, [partition]))[partition].error
    if code:
        raise error_for(code, cluster=target.alias, request="DescribeProducers", subject=name)


async def _try_settings(target: Cluster) -> None:
    """Reads one setting of a broker. Raises ClusterError."""
    await admin.describe_broker_configs(target, min(target.metadata.brokers), [PROBED_SETTING])


async def _try_acls(target: Cluster) -> None:
    """Lists the ACLs of topics. Raises ClusterError."""
    await admin.describe_acls(target, resource_type=TOPIC)


# In the order in which they are reported. `fencing.why_unfenced` tries transactions with the flow's own ids.
CAPABILITIES = (
    Capability(
        name=TRANSACTIONS,
        requests={24: "AddPartitionsToTxn", 26: "EndTxn"},
        without="the flow runs at-least-once, and after a crash copies records since the last stored position again",
    ),
    Capability(
        name=IDEMPOTENCE,
        requests={22: "InitProducerId"},
        without="the flow cannot write, because a lost response would repeat or lose records",
        probe=_try_idempotence,
    ),
    Capability(
        name=EPOCHS,
        requests={23: "OffsetForLeaderEpoch"},
        without="the flow cannot continue after a restart, because it would not notice that the target has lost records",
    ),
    Capability(
        name=PRODUCERS,
        requests={61: "DescribeProducers"},
        without="the log is read instead, and after a kill a partition whose newest copied records retention has removed "
        "stops with TargetDataLost",
        probe=_try_producers,
    ),
    Capability(
        name=READ_SETTINGS,
        requests={32: "DescribeConfigs"},
        without="the flow does not start, because it cannot know how long brokers remember its producers",
        probe=_try_settings,
    ),
    Capability(
        name=CHANGED_SETTINGS,
        requests={44: "IncrementalAlterConfigs"},
        without="settings of existing copies are not synchronised",
    ),
    Capability(
        name=ACLS,
        requests={29: "DescribeAcls", 30: "CreateAcls", 31: "DeleteAcls"},
        without="ACLs are not synchronised",
        probe=_try_acls,
    ),
    Capability(
        name=PARTITIONS,
        requests={37: "CreatePartitions"},
        without="copies do not get more partitions when their source does",
    ),
)


async def check_capabilities(target: Cluster, settings: SourceSettings, findings: Findings) -> None:
    """Reports what the brokers of *target* offer, and what follows where they lack something that the flow uses.

    Missing transactions are left to `check.check_guarantee`. Raises ClusterError if no broker can be reached.
    """
    unused = {TRANSACTIONS}
    if settings.sync_acls_s is None:
        unused.add(ACLS)
    if settings.sync_configs_s is None:
        unused.add(CHANGED_SETTINGS)
    offered = []
    for capability in CAPABILITIES:
        reason = await _why_missing(target, capability)
        findings.capability(capability.name, reason=reason, follows=capability.without)
        if reason is None:
            offered.append(capability.name)
        elif capability.name not in unused:
            report = findings.problem if capability.name in NEEDED else findings.note
            report(f"{reason}: {capability.without}.")
    findings.fact(
        f"{target.alias} offers {', '.join(offered)}" if offered else f"{target.alias} offers no capability"
    )


async def _why_missing(target: Cluster, capability: Capability) -> str | None:
    """Returns which broker lacks or refuses which request of *capability*; None if none does."""
    for node_id in sorted(target.metadata.brokers):
        try:
            versions = (await target.connection(node_id)).versions
        except UnreachableError:
            continue  # reported for each broker before
        missing = [name for key, name in capability.requests.items() if key not in versions]
        if missing:
            return f"Broker {node_id} of {target.alias} does not offer {' and '.join(missing)}"
    return None if capability.probe is None else await _why_refused(target, capability.probe)


async def _why_refused(target: Cluster, probe: Probe) -> str | None:
    try:
        await probe(target)
    except NotAuthorizedError:
        return None  # reported among the permissions
    except (BrokerError, UnsupportedBrokerError) as error:
        if isinstance(error, BrokerError) and error.code == SECURITY_DISABLED:
            return f"{target.alias} has no authorizer"
        if error.retriable:
            return None  # an election is under way, which says nothing about what is offered
        return str(error).rstrip(".")
    return None
