"""`mirrorflow check`: would the flow run? Both clusters are asked, nothing is changed.

Here: reachability with each client's own credentials, and what the brokers offer. What we may do is `permissions`', what
would be created `creation`'s. No producer id is asked for: that would raise the epoch of a flow that runs.
"""

import argparse
import asyncio

from mirrorflow_cli.clusters import reached, selected_topics
from mirrorflow_cli.creation import check_creation
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED
from mirrorflow_cli.findings import Findings
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.permissions import check_source, check_target
from mirrorflow_cli.settings import source_settings
from mirrorflow_operator.plan.plan import plan
from mirrorflow_replicator.errors import ClusterError, SettingError
from mirrorflow_replicator.flow.topic_configs import ConfigEntry
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.settings import SourceSettings

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
    findings = Findings()
    for sentence in (*planned.notes, *warnings):
        findings.note(sentence)
    asyncio.run(_check(settings, findings))
    for problem in findings.problems:
        print(f"fail  {problem}")
    if not findings.problems:
        print(f"{planned.flow} can run")
        return EXIT_DONE
    print(f"{planned.flow}: {len(findings.problems)} problems")
    return EXIT_FAILED


async def _check(settings: SourceSettings, findings: Findings) -> None:
    topics: dict[str, int] = {}
    configs: dict[str, tuple[ConfigEntry, ...]] = {}
    try:
        async with reached(settings.source_admin, settings) as source:
            await _reachable(source, settings.source_alias, SOURCE_APIS, findings)
            topics = await selected_topics(source, settings)
            configs = await check_source(source, settings, topics, findings)
    except (ClusterError, SettingError) as error:
        findings.problem(str(error))
    try:
        async with reached(settings.target_admin, settings) as target:
            await _reachable(target, settings.target_alias, TARGET_APIS, findings)
            await check_target(target, settings, topics, findings)
            await check_creation(target, settings, topics, configs, findings)
    except (ClusterError, SettingError) as error:
        findings.problem(str(error))
    await _other_clients(settings, findings)


async def _other_clients(settings: SourceSettings, findings: Findings) -> None:
    """The clients that copy may have credentials of their own."""
    for client, first in (
        (settings.source_consumer, settings.source_admin),
        (settings.target_producer, settings.target_admin),
        (settings.offsets.client, settings.target_admin),
    ):
        if _connection(client.properties) == _connection(first.properties):
            continue
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
