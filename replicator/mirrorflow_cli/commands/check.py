"""`mirrorflow check`: checks on both clusters whether the flow can run; changes nothing.

This module checks reachability with each client's own credentials, and which guarantee the flow will have
(docs/exactly-once.md). `check_capabilities` checks which requests the target offers, `check_owner` who owns the flow,
`check_permissions` what its users may do, `check_creation` what would be created, and `check_record_limits` which records the copies
would refuse.
"""

import argparse
import asyncio
from dataclasses import dataclass, field, replace

from mirrorflow_cli.check_capabilities import check_capabilities
from mirrorflow_cli.check_creation import check_creation, check_retention
from mirrorflow_cli.check_owner import check_flow_owner, check_same_cluster
from mirrorflow_cli.check_permissions import (
    Needed,
    check_acls,
    check_heartbeats_on_source,
    check_source,
    check_source_groups,
    check_target,
    check_target_groups,
    checkpoint_topics,
    heartbeat_topics,
    own_topics,
    source_acls,
)
from mirrorflow_cli.check_record_limits import SourceTopics, sample_topics
from mirrorflow_cli.clusters import connected, selected_topics
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
from mirrorflow_core.errors import ClusterError, NotAuthorizedError, SettingError, ShortTransactionsError
from mirrorflow_core.offsets.checkpoints import Group
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import (
    CheckpointSettings,
    ClientSettings,
    HeartbeatSettings,
    PolicyKind,
    SourceSettings,
)
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.claim_view import ClaimView
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.transaction_log_reader import LogCache
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.fencing import why_unfenced
from mirrorflow_kafka.writer.producer_transactions import SHORTEST_TRANSACTION_MS, short_timeout_warning
from mirrorflow_replicator.config.clients import shared
from mirrorflow_replicator.connectors.claim_reader import updated_view
from mirrorflow_replicator.connectors.flow_takeover import opposite_topics
from mirrorflow_replicator.connectors.internal_topics import internal_topics, internal_topics_of_source
from mirrorflow_replicator.http.progress_text import counted

# APIs that a source needs besides those for reading: api key -> (name, Kafka release, purpose).
SOURCE_APIS = {23: ("OffsetForLeaderEpoch", "0.11", "noticing that records were truncated")}
MAX_TIMEOUT = "transaction.max.timeout.ms"


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
