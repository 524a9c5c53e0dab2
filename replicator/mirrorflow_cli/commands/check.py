"""`mirrorflow check`: checks on both clusters whether the flow can run; changes nothing.

This module checks reachability with each client's own credentials, who owns the flow, and which guarantee it will have
(docs/exactly-once.md). `check_capabilities` checks which requests the target offers, `check_permissions` what the flow's
users may do, and `check_creation` below what would be created. No transactional id is used: that would fence the flow's owner.
"""

import argparse
import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirrorflow_cli.check_capabilities import check_capabilities
from mirrorflow_cli.check_permissions import (
    UNAUTHORIZED,
    Needed,
    check_acls,
    check_heartbeats_on_source,
    check_source,
    check_source_groups,
    check_target,
    check_target_groups,
    checkpoint_topics,
    first_of,
    heartbeat_topics,
    missing_acl_message,
    own_topics,
    source_acls,
)
from mirrorflow_cli.check_record_limits import SourceTopics, check_record_limits, sample_topics
from mirrorflow_cli.clusters import connected, selected_topics, target_plan, topic_sizes
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED
from mirrorflow_cli.flow_arguments import (
    companion_settings,
    flow_from,
    layout_from,
    source_settings,
    valid_plan,
)
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.output import Findings, add_json_argument, print_json
from mirrorflow_cli.schema_plans import check_schemas, schema_settings
from mirrorflow_core.errors import (
    ClusterChangedError,
    ClusterError,
    FlowEndedError,
    FlowExistsError,
    NotAuthorizedError,
    SettingError,
    ShortTransactionsError,
    UnsupportedBrokerError,
)
from mirrorflow_core.offsets.checkpoints import Group
from mirrorflow_core.replication_policy import runs_elsewhere
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import (
    CheckpointSettings,
    ClientSettings,
    HeartbeatSettings,
    PolicyKind,
    SourceSettings,
)
from mirrorflow_core.topics.same_cluster import same_cluster_refusal, same_cluster_warning
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, changes_by_copy, compacted_alone
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.claim_view import ClaimView
from mirrorflow_core.writer.flow_start import awaited_switchover
from mirrorflow_core.writer.transaction_log import decided_records
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.configs import alter_to_accepted_settings, create_with_accepted_settings
from mirrorflow_kafka.admin.transaction_log_reader import LogCache, read_log
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.fencing import why_unfenced
from mirrorflow_kafka.writer.producer_transactions import SHORTEST_TRANSACTION_MS, short_timeout_warning
from mirrorflow_replicator.config.clients import shared
from mirrorflow_replicator.config.plugins import make_config_rules, make_selection
from mirrorflow_replicator.connectors.claim_reader import updated_view
from mirrorflow_replicator.connectors.flow_takeover import opposite_topics, refuse_changed_clusters
from mirrorflow_replicator.connectors.internal_topics import (
    correct_topic_configs,
    internal_topics,
    internal_topics_of_source,
    is_internal,
)
from mirrorflow_replicator.copy.task_parts import flow_topics
from mirrorflow_replicator.http.progress_text import counted

# APIs that a source needs besides those for reading: api key -> (name, Kafka release, purpose).
SOURCE_APIS = {23: ("OffsetForLeaderEpoch", "0.11", "noticing that records were truncated")}
LIST_CLIENT_METRICS = 74  # an API key since Kafka 3.7
MAX_TIMEOUT = "transaction.max.timeout.ms"
MIN_IN_SYNC, DEFAULT_FACTOR = "min.insync.replicas", "default.replication.factor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flow_arguments(parser, addresses=True)
    add_json_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the findings and returns 0, or 1 if there are problems."""
    flow = flow_from(arguments)
    planned = valid_plan(flow, layout_from(arguments))
    settings, warnings = source_settings(planned)
    checkpoint, heartbeat, further = companion_settings(planned)
    findings = Findings(prints=not arguments.json)
    for sentence in dict.fromkeys((*planned.notes, *warnings, *further)):
        findings.note(sentence)
    check = _FlowCheck(settings=settings, checkpoint=checkpoint, heartbeat=heartbeat, findings=findings)
    asyncio.run(check.run())
    if (schemas := schema_settings(planned)) is not None:
        check_schemas(schemas, findings)
    if arguments.json:
        print_json({"flow": planned.flow, **findings.as_json()})
    else:
        for problem in findings.problems:
            print(f"fail  {problem}")
        count = len(findings.problems)
        print(f"{planned.flow}: {counted(count, 'problem')}" if count else f"{planned.flow} can run")
    return EXIT_FAILED if findings.problems else EXIT_DONE


@dataclass(slots=True, kw_only=True)
class _FlowCheck:
    """All checks of one flow. The target's checks need what the source's checks have found."""

    settings: SourceSettings
    checkpoint: CheckpointSettings | None
    heartbeat: HeartbeatSettings | None
    findings: Findings
    source_cluster_id: str | None = None
    topics: SourceTopics = field(default_factory=SourceTopics)
    groups: tuple[Group, ...] = ()
    acls: tuple[AclBinding, ...] = ()
    opposite: Claim | None = (
        None  # of the flow from the target to the source, which a switchover may have ended
    )

    async def run(self) -> None:
        on_source, on_target = ({}, {}) if self.checkpoint is None else checkpoint_topics(self.checkpoint)
        try:
            await self._check_source(on_source)
        except (ClusterError, SettingError) as error:
            self.findings.problem(str(error))
        try:
            await self._check_target(on_target)
        except (ClusterError, SettingError) as error:
            self.findings.problem(str(error))
        await self._check_other_clients()

    async def _check_source(self, also_needed: Needed) -> None:
        """Raises ClusterError, SettingError; what was found before stays."""
        settings, findings = self.settings, self.findings
        async with connected(settings.source_admin, settings) as source:
            await _check_brokers(source, settings.source_alias, SOURCE_APIS, findings)
            self.source_cluster_id = source.cluster_id
            selected = await selected_topics(source, settings)
            self.topics = SourceTopics(sizes=selected.topics)
            configs = await check_source(source, settings, selected, also_needed, findings)
            self.topics = replace(self.topics, configs=configs)
            samples = await sample_topics(source, selected.topics, configs)
            self.topics = replace(self.topics, samples=samples)
            await check_retention(source, internal_topics_of_source(settings), findings)
            if self.checkpoint is not None:
                self.groups = await check_source_groups(source, self.checkpoint, findings)
            if self.heartbeat is not None:
                await check_heartbeats_on_source(source, self.heartbeat, findings)
            self.acls = await source_acls(source, settings)
            if settings.policy.kind is PolicyKind.IDENTITY:
                await self._read_opposite(source)

    async def _read_opposite(self, source: Cluster) -> None:
        """Raises ClusterError, also if the claims have no leader: so this is the last of the source's checks."""
        settings = self.settings
        view = await updated_view(ClaimView(), source, opposite_topics(settings), LogCache())
        self.opposite = view.claim
        if view.unread is not None:
            self.findings.problem(
                f"Whether a switchover has ended the flow from {settings.target_alias} to {settings.source_alias} is unknown: {view.unread}"
            )

    async def _check_target(self, also_needed: Needed) -> None:
        settings, findings, topics = self.settings, self.findings, self.topics
        async with connected(settings.target_admin, settings) as target:
            await _check_brokers(target, settings.target_alias, {}, findings)
            await check_capabilities(target, settings, findings)
            check_same_cluster(target, settings, self.source_cluster_id, topics.sizes, findings)
            await check_flow_owner(target, settings, self.source_cluster_id, self.opposite, findings)
            beats = {} if self.heartbeat is None else heartbeat_topics(self.heartbeat)
            has_owner = await check_guarantee(target, settings, findings)
            await check_target(
                target, settings, topics.sizes, {**also_needed, **beats}, findings, has_owner=has_owner
            )
            if self.checkpoint is not None:
                await check_target_groups(target, self.checkpoint, self.groups, findings)
            await check_acls(target, settings, topics.sizes, self.acls, findings)
            own = internal_topics(settings, has_owner=has_owner)
            more = [*own, *own_topics(self.checkpoint, self.heartbeat)]
            await check_creation(target, settings, topics, more, findings)

    async def _check_other_clients(self) -> None:
        """Connects once with each set of credentials that differs from those of the two admin clients."""
        firsts = (self.settings.source_admin, self.settings.target_admin)
        tried = {_connection(first) for first in firsts}
        for client in self._clients():
            if _connection(client) in tried:
                continue
            tried.add(_connection(client))
            try:
                async with connected(client, self.settings):
                    self.findings.fact(f"{client.client_id} is accepted by {client.alias}")
                self.findings.note(
                    f"The permissions of {client.client_id} are not checked: it has credentials of its own."
                )
            except (ClusterError, SettingError) as error:
                self.findings.problem(f"{client.client_id}: {error}")

    def _clients(self) -> list[ClientSettings]:
        settings, checkpoint = self.settings, self.checkpoint
        clients = [settings.source_consumer, settings.target_producer, settings.offsets.client]
        if checkpoint is not None:
            clients += [checkpoint.source_admin, checkpoint.source_consumer, checkpoint.target_admin]
            clients += [checkpoint.target_consumer, checkpoint.target_producer]
        for beat in () if self.heartbeat is None else self.heartbeat.beats:
            clients += [beat.producer, beat.admin]
        return clients


def _connection(client: ClientSettings) -> tuple[object, ...]:
    """Returns what decides how *client* connects and authenticates."""
    return (client.alias, *sorted(shared(client.properties).items()))


async def _check_brokers(
    cluster: Cluster, alias: str, apis: dict[int, tuple[str, str, str]], findings: Findings
) -> None:
    brokers = sorted(cluster.metadata.brokers)
    findings.fact(f"{alias} is cluster {cluster.cluster_id} with {counted(len(brokers), 'broker')}")
    for node_id in brokers:
        try:
            versions = (await cluster.connection(node_id)).versions
        except ClusterError as error:
            findings.problem(f"Broker {node_id} of {alias}: {error}")
            continue
        for key, (name, release, purpose) in apis.items():
            if key not in versions:
                findings.problem(
                    f"Broker {node_id} of {alias} does not offer {name}, needed for {purpose}; use Kafka {release} or later."
                )


async def check_guarantee(target: Cluster, settings: SourceSettings, findings: Findings) -> bool:
    """Reports the guarantee, and why it is not exactly-once where it is not.

    Returns whether the flow can have an owner. Raises ClusterError.
    """
    alias = settings.target_alias
    why = await why_unfenced(target, settings.source_alias, settings.offsets.store)
    guarantee = Guarantee.EXACTLY_ONCE if why is None else Guarantee.AT_LEAST_ONCE
    findings.guarantee(guarantee.value, why)
    if why is not None:
        findings.note(
            f"{alias} gives {Guarantee.AT_LEAST_ONCE.value}, because {why}: after a crash, records after the last stored "
            f"position are copied again. `mirrorflow acls` prints the ACLs that {Guarantee.EXACTLY_ONCE.value} needs."
        )
    else:
        findings.fact(f"{alias} gives {Guarantee.EXACTLY_ONCE.value} to readers of committed records")
        await _check_transaction_timeout(target, settings, findings)
    return why is None


def check_same_cluster(
    target: Cluster,
    settings: SourceSettings,
    source_cluster_id: str | None,
    topics: Collection[str],
    findings: Findings,
) -> None:
    """Reports that the source, with these *topics*, is the *target* itself; *source_cluster_id* is None if it did not answer."""
    if source_cluster_id is None or source_cluster_id != target.cluster_id:
        return
    aliases = {"source_alias": settings.source_alias, "target_alias": settings.target_alias}
    refusal = same_cluster_refusal(
        make_selection(settings), **aliases, cluster_id=source_cluster_id, topics=topics
    )
    if refusal is not None:
        findings.problem(str(refusal))
    else:
        findings.note(same_cluster_warning(**aliases, cluster_id=source_cluster_id))


async def _check_transaction_timeout(target: Cluster, settings: SourceSettings, findings: Findings) -> None:
    try:
        brokers = await admin.describe_brokers(target, [MAX_TIMEOUT])
    except NotAuthorizedError:
        return  # `run` learns the limit when longer transactions are refused
    limits_ms = [configs[MAX_TIMEOUT] for configs in brokers.values() if MAX_TIMEOUT in configs]
    timeout_ms = min([settings.transaction_timeout_ms, *limits_ms])
    if timeout_ms < SHORTEST_TRANSACTION_MS:
        error = ShortTransactionsError(cluster=settings.target_alias, timeout_ms=SHORTEST_TRANSACTION_MS)
        findings.problem(str(error))
    elif warning := short_timeout_warning(settings.target_alias, timeout_ms):
        findings.note(warning)


async def check_flow_owner(
    target: Cluster,
    settings: SourceSettings,
    source_cluster_id: str | None,
    opposite: Claim | None,
    findings: Findings,
) -> None:
    """Reports another flow or cluster that owns the source alias on *target*, and what the flow would wait for. Raises ClusterError.

    *source_cluster_id* is None if the source did not answer, and is not compared then. *opposite*: the newest claim of the flow in the
    opposite direction, if topics keep their names.
    """
    claim = await _newest_claim(target, settings)
    if switchover := awaited_switchover(claim, opposite, target_cluster_id=target.cluster_id):
        source, to = settings.source_alias, settings.target_alias
        findings.note(str(FlowEndedError(source=source, target=to, switchover=switchover, is_opposite=True)))
    if claim is None or not (claim.has_run or claim.ended is not None):
        return  # at most a switchover that was rolled back has held it
    source, owner = settings.source_alias, claim.flow
    if runs_elsewhere(settings.flow, owner):
        findings.note(
            f"{settings.target_alias} receives {source} from flow {owner}, which a Kubernetes cluster runs."
        )
    elif owner in settings.takes_over:
        findings.note(f"This flow takes {source} over from flow {owner}: stop that one first.")
    elif owner != settings.flow:
        error = FlowExistsError(
            source=source, target=settings.target_alias, owner=owner, claimant=settings.flow
        )
        findings.problem(str(error))
    if claim.ended is not None:
        findings.note(
            str(FlowEndedError(source=source, target=settings.target_alias, switchover=claim.ended))
        )
    now = replace(claim, source_cluster_id=source_cluster_id, target_cluster_id=target.cluster_id)
    try:
        refuse_changed_clusters(claim, now, settings)
    except ClusterChangedError as error:
        findings.problem(str(error))


async def _newest_claim(target: Cluster, settings: SourceSettings) -> Claim | None:
    """Returns the claim of the flow's last owner; None if there is none or it may not be read."""
    topics = flow_topics(settings)
    try:
        await target.refresh([topics.claims.topic])
        if target.leader(*topics.claims) is None:
            return None
        log = await read_log(target, topics.claims, topics.claim_in)
    except NotAuthorizedError:
        return None  # `check_permissions` reports the missing permission.
    claims = decided_records(log, Claim).committed
    return claims[-1] if claims else None


async def check_creation(
    target: Cluster,
    settings: SourceSettings,
    source: SourceTopics,
    further_topics: Sequence[admin.NewTopic],
    findings: Findings,
) -> None:
    """Reports which copies of the *source* could not be created, and what would be created and grown.

    *further_topics* are the topics that connectors create for themselves.
    """
    present = await topic_sizes(target)
    planned = target_plan(settings, source.sizes, present, source.configs)
    for topic, other in planned.clashes.items():
        findings.problem(f"Topic {topic} would have the target name of {other}; exclude one of them.")
    wanted = [
        admin.NewTopic(
            name=new.name,
            partitions=new.partitions,
            replication_factor=new.replication_factor,
            configs=new.configs,
        )
        for new in planned.create
    ] + [topic for topic in further_topics if topic.name not in present]
    outcome = await create_with_accepted_settings(target, wanted, validate_only=True)
    for sentence in outcome.settings:
        findings.note(sentence)
    await _check_replicas(
        target,
        [new for new in wanted if new.name not in outcome.refused],
        [name for name in _copies(settings, source.sizes, further_topics) if name in present],
        findings,
    )
    forbidden = []
    for name, refusal in outcome.refused.items():
        if refusal.code in UNAUTHORIZED:
            forbidden.append(name)
        else:
            findings.problem(f"Topic {name} could not be created on {settings.target_alias}: {refusal}.")
    if forbidden:
        findings.problem(missing_acl_message(target, "Create", first_of(forbidden)))
    kept = [
        topic for topic in further_topics if is_internal(topic.name) or topic.name == settings.offsets.topic
    ]
    await check_retention(target, [topic for topic in kept if topic.name in present], findings)
    new = {
        topic.name: tuple(ConfigChange(name=name, value=value) for name, value in topic.configs.items())
        for topic in planned.create
    }
    await _check_settings(target, settings, present, source, new, findings)
    findings.would("create", [new.name for new in wanted if new.name not in outcome.refused])
    findings.would(
        "grow", [f"{growth.name} to {counted(growth.total, 'partition')}" for growth in planned.grow]
    )


async def _check_replicas(
    target: Cluster, new: Sequence[admin.NewTopic], existing: Sequence[str], findings: Findings
) -> None:
    """Reports *new* and *existing* topics with fewer replicas than writes need.

    Since Kafka 3.7 brokers require no more replicas in sync than there are (KAFKA-15583).
    """
    node_id = min(target.metadata.brokers)
    if LIST_CLIENT_METRICS in (await target.connection(node_id)).versions:
        return
    try:
        brokers = await admin.describe_broker_configs(target, node_id, [MIN_IN_SYNC, DEFAULT_FACTOR])
        topics = await admin.describe_topic_configs(target, existing)
    except NotAuthorizedError:
        return  # `run` names both settings when writes are refused
    least, usual = (_number(brokers.get(name)) for name in (MIN_IN_SYNC, DEFAULT_FACTOR))
    replicas = {
        topic.name: (
            usual if topic.replication_factor == -1 else topic.replication_factor,
            int(topic.configs.get(MIN_IN_SYNC, least)),
        )
        for topic in new
    }
    for name, entries in topics.items():
        needed = _number(next((entry for entry in entries if entry.name == MIN_IN_SYNC), None))
        partitions = target.metadata.topics[name].partitions.values()
        replicas[name] = (min((len(partition.replicas) for partition in partitions), default=needed), needed)
    for sentence in too_few_replicas(replicas, target.alias):
        findings.problem(sentence)


def too_few_replicas(replicas: Mapping[str, tuple[int, int]], alias: str) -> list[str]:
    """Returns a sentence for topics that accept no write; *replicas*: topic -> replicas, `min.insync.replicas`."""
    short: dict[tuple[int, int], list[str]] = {}
    for name, (count, needed) in replicas.items():
        if count < needed:
            short.setdefault((count, needed), []).append(name)
    return [
        f"Replicas on {alias} are too few for {first_of(names)}: {count} (replication.factor), and no write is "
        f"accepted with fewer than {needed} in sync (min.insync.replicas): raise the first or lower the second."
        for (count, needed), names in short.items()
    ]


def _number(entry: ConfigEntry | None) -> int:
    return int(entry.value) if entry is not None and entry.value else 1


async def _check_settings(
    target: Cluster,
    settings: SourceSettings,
    present: dict[str, int],
    source: SourceTopics,
    new: Mapping[str, tuple[ConfigChange, ...]],
    findings: Findings,
) -> None:
    """Notes what the target would refuse: settings of existing copies, and records of existing and *new* ones.

    *new* is copy -> its settings. Copies that are compacted alone refuse records, too.
    """
    remote, configs = make_selection(settings).target_topic, source.configs
    names = {topic: remote(topic) for topic in configs if remote(topic) in present}
    try:
        existing = await admin.describe_topic_configs(target, list(names.values()))
        changes = {}
        if settings.sync_configs_s is not None:
            changes = changes_by_copy(names, configs, existing, make_config_rules(settings))
        accepted, outcome = await alter_to_accepted_settings(target, changes, validate_only=True)
    except (NotAuthorizedError, UnsupportedBrokerError):
        return  # reported among the permissions and the brokers' APIs
    applied = {} if settings.configs_report_only else accepted
    for sentence in (*outcome.settings, *compacted_alone(names, configs, existing, applied)):
        findings.note(sentence)
    names |= {topic: remote(topic) for topic in configs if remote(topic) in new}
    await check_record_limits(target, names, source, existing, {**new, **applied}, findings)


def _copies(
    settings: SourceSettings, topics: dict[str, int], further_topics: Sequence[admin.NewTopic]
) -> list[str]:
    """Returns the names of all topics that the flow writes on the target."""
    remote = make_selection(settings).target_topic
    return [*map(remote, topics), *(topic.name for topic in further_topics)]


async def check_retention(cluster: Cluster, topics: Sequence[admin.NewTopic], findings: Findings) -> None:
    """Reports the flow's own *topics* that expire records and whose settings the flow may not change."""
    uncorrected = await correct_topic_configs(cluster, topics, validate_only=True)
    for sentence in uncorrected.refused:
        findings.problem(sentence)
    if uncorrected.unread:
        findings.note(
            f"The retention of {first_of(uncorrected.unread)} on {cluster.alias} cannot be read without the permission "
            "DescribeConfigs."
        )
