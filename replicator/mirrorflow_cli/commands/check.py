"""`mirrorflow check`: checks on both clusters whether the flow can run; changes nothing.

This module checks reachability with each client's own credentials, which APIs the brokers offer, who owns the
flow, and which guarantee it will have (docs/exactly-once.md). `check_permissions` checks what the flow's users may
do; `check_creation` checks what would be created. No transactional id is used: that would take the flow from its
owner.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace

from mirrorflow_cli.check_creation import check_creation, check_kept
from mirrorflow_cli.check_findings import Findings
from mirrorflow_cli.check_permissions import (
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
from mirrorflow_cli.check_record_limits import TopicSample, sample_topics
from mirrorflow_cli.clusters import reached, selected_topics
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED
from mirrorflow_cli.flow_plans import companion_settings, source_settings, valid_plan
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.output import add_json_argument, print_json
from mirrorflow_core.errors import (
    ClusterChangedError,
    ClusterError,
    FlowExistsError,
    NotAuthorizedError,
    SettingError,
)
from mirrorflow_core.replication_policy import runs_elsewhere
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import (
    CheckpointSettings,
    ClientSettings,
    HeartbeatSettings,
    SourceSettings,
)
from mirrorflow_core.topic_acls import AclBinding
from mirrorflow_core.topic_configs import ConfigEntry
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.transaction_log import decided_records
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.fencing import why_unfenced
from mirrorflow_kafka.writer.log_batches import read_log
from mirrorflow_replicator.config.clients import shared
from mirrorflow_replicator.connectors.flow_owner import refuse_changed_clusters
from mirrorflow_replicator.connectors.internal_topics import internal_topics, internal_topics_of_source
from mirrorflow_replicator.copy.task_parts import flow_topics

# APIs that a target needs besides those for copying: api key -> (name, Kafka release, purpose).
TARGET_APIS = {
    22: ("InitProducerId", "0.11", "idempotent batches"),
    23: ("OffsetForLeaderEpoch", "0.11", "noticing that the target has lost records"),
    44: ("IncrementalAlterConfigs", "2.3", "topic settings"),
}
SOURCE_APIS = {23: ("OffsetForLeaderEpoch", "0.11", "noticing that records were truncated")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `mirrorflow check`."""
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
    asyncio.run(_check(settings, checkpoint, heartbeat, findings))
    if arguments.json:
        print_json({"flow": planned.flow, **findings.as_json()})
    else:
        for problem in findings.problems:
            print(f"fail  {problem}")
        count = len(findings.problems)
        print(f"{planned.flow}: {count} problems" if count else f"{planned.flow} can run")
    return EXIT_FAILED if findings.problems else EXIT_DONE


async def _check(
    settings: SourceSettings,
    checkpoint: CheckpointSettings | None,
    heartbeat: HeartbeatSettings | None,
    findings: Findings,
) -> None:
    on_source, on_target = ({}, {}) if checkpoint is None else checkpoint_topics(checkpoint)
    groups: tuple[str, ...] = ()
    topics: dict[str, int] = {}
    configs: dict[str, tuple[ConfigEntry, ...]] = {}
    samples: dict[str, TopicSample] = {}
    acls: tuple[AclBinding, ...] = ()
    source_cluster_id = ""
    try:
        async with reached(settings.source_admin, settings) as source:
            await _reachable(source, settings.source_alias, SOURCE_APIS, findings)
            source_cluster_id = source.cluster_id
            selected = await selected_topics(source, settings)
            topics = selected.topics
            configs = await check_source(source, settings, selected, on_source, findings)
            samples = await sample_topics(source, topics, configs)
            await check_kept(source, internal_topics_of_source(settings), findings)
            if checkpoint is not None:
                groups = await check_source_groups(source, checkpoint, findings)
            if heartbeat is not None:
                await check_heartbeats_on_source(source, heartbeat, findings)
            acls = await source_acls(source, settings)
    except (ClusterError, SettingError) as error:
        findings.problem(str(error))
    try:
        async with reached(settings.target_admin, settings) as target:
            await _reachable(target, settings.target_alias, TARGET_APIS, findings)
            await check_flow_owner(target, settings, source_cluster_id, findings)
            beats = {} if heartbeat is None else heartbeat_topics(heartbeat)
            has_owner = await check_guarantee(target, settings, findings)
            await check_target(
                target, settings, topics, {**on_target, **beats}, findings, has_owner=has_owner
            )
            if checkpoint is not None:
                await check_target_groups(target, checkpoint, groups, findings)
            await check_acls(target, settings, topics, acls, findings)
            own = internal_topics(settings, has_owner=has_owner)
            more = [*own, *own_topics(checkpoint, heartbeat)]
            await check_creation(target, settings, topics, configs, samples, more, findings)
    except (ClusterError, SettingError) as error:
        findings.problem(str(error))
    await _other_clients(settings, _clients(settings, checkpoint, heartbeat), findings)


def _clients(
    settings: SourceSettings, checkpoint: CheckpointSettings | None, heartbeat: HeartbeatSettings | None
) -> list[ClientSettings]:
    found = [settings.source_consumer, settings.target_producer, settings.offsets.client]
    if checkpoint is not None:
        found += [checkpoint.source_admin, checkpoint.source_consumer, checkpoint.target_admin]
        found += [checkpoint.target_consumer, checkpoint.target_producer]
    for beat in () if heartbeat is None else heartbeat.beats:
        found += [beat.producer, beat.admin]
    return found


async def _other_clients(
    settings: SourceSettings, clients: Sequence[ClientSettings], findings: Findings
) -> None:
    """Connects once with each set of credentials that differs from those of the two admin clients."""
    firsts = (settings.source_admin, settings.target_admin)
    tried = {(first.alias, *sorted(shared(first.properties).items())) for first in firsts}
    for client in clients:
        way = (client.alias, *sorted(shared(client.properties).items()))
        if way in tried:
            continue
        tried.add(way)
        try:
            async with reached(client, settings):
                findings.fact(f"{client.client_id} is accepted by {client.alias}")
            findings.note(f"What {client.client_id} may do is not asked: it has credentials of its own.")
        except (ClusterError, SettingError) as error:
            findings.problem(f"{client.client_id}: {error}")


async def _reachable(
    cluster: Cluster, alias: str, apis: dict[int, tuple[str, str, str]], findings: Findings
) -> None:
    brokers = sorted(cluster.metadata.brokers)
    findings.fact(f"{alias} is cluster {cluster.cluster_id} with {len(brokers)} brokers")
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
    if why:
        findings.note(
            f"{alias} gives {Guarantee.AT_LEAST_ONCE.value}, because {why}: after a crash, records behind the last stored "
            f"position are copied again. `mirrorflow acls` prints the ACLs that {Guarantee.EXACTLY_ONCE.value} needs."
        )
    else:
        findings.fact(f"{alias} gives {Guarantee.EXACTLY_ONCE.value} to readers of committed records")
    return not why


async def check_flow_owner(
    target: Cluster, settings: SourceSettings, source_cluster_id: str, findings: Findings
) -> None:
    """Reports another flow or cluster that owns the source alias on *target*. Raises ClusterError.

    *source_cluster_id* is "" if the source did not answer, and is not compared then.
    """
    claim = await _newest_claim(target, settings)
    if claim is None:
        return
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
