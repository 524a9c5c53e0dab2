"""`mirrorflow check`: would the flow run? Both clusters are asked, nothing is changed.

Here: reachability with each client's own credentials, and what the brokers offer. What we may do is `permissions`'
and `companion_permissions`', what would be created `creation`'s. No producer id is asked for: that would raise the epoch of a flow that runs.
"""

import argparse
import asyncio
from collections.abc import Sequence

from mirrorflow_cli.clusters import reached, selected_topics
from mirrorflow_cli.companion_permissions import (
    check_heartbeats_on_source,
    check_source_groups,
    check_target_groups,
    checkpoint_topics,
    heartbeat_topics,
    own_topics,
)
from mirrorflow_cli.creation import check_creation
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED
from mirrorflow_cli.findings import Findings
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.permissions import check_source, check_target
from mirrorflow_cli.settings import companion_settings, source_settings
from mirrorflow_operator.plan.plan import plan
from mirrorflow_replicator.errors import ClusterError, SettingError
from mirrorflow_replicator.flow.topic_configs import ConfigEntry
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.settings import (
    CheckpointSettings,
    ClientSettings,
    HeartbeatSettings,
    SourceSettings,
)

# What a target must offer besides copying: api key -> (name, release, what it is needed for).
TARGET_APIS = {
    22: ("InitProducerId", "0.11", "the flow's producer identity"),
    61: ("DescribeProducers", "2.8", "asking the target which record it has last"),
    44: ("IncrementalAlterConfigs", "2.3", "topic settings"),
}
SOURCE_APIS = {23: ("OffsetForLeaderEpoch", "0.11", "noticing that records were truncated")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow check`."""
    add_flow_arguments(parser, addresses=True)


def execute(arguments: argparse.Namespace) -> int:
    """0, or 1 with the list of problems."""
    flow = flow_from(arguments)
    planned = plan(flow, layout_from(arguments))
    settings, warnings = source_settings(planned)
    checkpoint, heartbeat, further = companion_settings(planned)
    findings = Findings()
    for sentence in dict.fromkeys((*planned.notes, *warnings, *further)):
        findings.note(sentence)
    asyncio.run(_check(settings, checkpoint, heartbeat, findings))
    for problem in findings.problems:
        print(f"fail  {problem}")
    if not findings.problems:
        print(f"{planned.flow} can run")
        return EXIT_DONE
    print(f"{planned.flow}: {len(findings.problems)} problems")
    return EXIT_FAILED


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
    try:
        async with reached(settings.source_admin, settings) as source:
            await _reachable(source, settings.source_alias, SOURCE_APIS, findings)
            topics = await selected_topics(source, settings)
            configs = await check_source(source, settings, topics, on_source, findings)
            if checkpoint is not None:
                groups = await check_source_groups(source, checkpoint, findings)
            if heartbeat is not None:
                await check_heartbeats_on_source(source, heartbeat, findings)
    except (ClusterError, SettingError) as error:
        findings.problem(str(error))
    try:
        async with reached(settings.target_admin, settings) as target:
            await _reachable(target, settings.target_alias, TARGET_APIS, findings)
            beats = {} if heartbeat is None else heartbeat_topics(heartbeat)
            await check_target(target, settings, topics, {**on_target, **beats}, findings)
            if checkpoint is not None:
                await check_target_groups(target, checkpoint, groups, findings)
            more = own_topics(checkpoint, heartbeat)
            await check_creation(target, settings, topics, configs, more, findings)
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
    """The clients of a connector may have credentials of their own; each of those is tried once."""
    firsts = (settings.source_admin, settings.target_admin)
    tried = {(first.alias, *sorted(_connection(first.properties).items())) for first in firsts}
    for client in clients:
        way = (client.alias, *sorted(_connection(client.properties).items()))
        if way in tried:
            continue
        tried.add(way)
        try:
            async with reached(client, settings):
                findings.fact(f"{client.client_id} is accepted by {client.alias}")
            findings.note(f"What {client.client_id} may do is not asked: it has credentials of its own.")
        except (ClusterError, SettingError) as error:
            findings.problem(f"{client.client_id}: {error}")


def _connection(properties: object) -> dict[str, str]:
    wanted = ("bootstrap.", "security.", "ssl.", "sasl.")
    return {key: value for key, value in dict(properties).items() if key.startswith(wanted)}  # type: ignore[call-overload]


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
