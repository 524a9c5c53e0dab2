"""`mirrorflow plan`: prints what a flow copies, creates and follows; with `--properties` also its connectors' properties.

References stay unresolved. With several files it also reports conflicts between the flows
(`mirrorflow_operator.admission.flow_conflicts`), with ids and topics of reachable clusters: loops, and topics that two
flows write to, make the exit status 1.
"""

import argparse
import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirrorflow_cli.check_permissions import own_topics
from mirrorflow_cli.clusters import connected, selected_topics, topic_sizes
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, FailedError
from mirrorflow_cli.flow_arguments import (
    companion_settings,
    flows_from,
    layout_from,
    source_settings,
    valid_plans,
)
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.output import add_json_argument, print_json
from mirrorflow_cli.schema_plans import as_json, lines_of, plan_of, schema_settings
from mirrorflow_core.errors import ClusterError, RegistryError, SettingError
from mirrorflow_core.schemas.schema_plan import SchemaPlan
from mirrorflow_core.settings import ClientSettings, SourceSettings
from mirrorflow_operator.admission.flow_conflicts import Conflict, Endpoint, FlowRoute, conflicts, samples
from mirrorflow_operator.api.spec import ClusterSpec, MirrorFlow, State
from mirrorflow_operator.plan.names import topic_selection_of
from mirrorflow_operator.plan.properties import Plan
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.providers import shown
from mirrorflow_replicator.connectors.internal_topics import internal_topics
from mirrorflow_replicator.connectors.schema_connector import PASS_INTERVAL_S
from mirrorflow_replicator.http.progress_text import counted, duration

# Cluster id and topics.
ClusterContents = tuple[str | None, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """One topic that matches now, and the name of its copy."""

    topic: str
    target: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFlow:
    """What `plan` shows of one flow.

    `topics` is None if topics were not requested, or could not be listed for the reason in `problem`.
    `nothing_selected` is as in `SelectedTopics`.
    """

    planned: Plan
    settings: SourceSettings
    notes: tuple[str, ...]
    topics: tuple[TopicPlan, ...] | None = None
    creates: tuple[str, ...] | None = None  # topics that the target lacks; None: not known
    nothing_selected: str | None = None
    problem: str | None = None
    schemas: SchemaPlan | None = None  # None: no registries, or they were not read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flow_arguments(parser, addresses=True, several=True)
    parser.add_argument(
        "--properties", action="store_true", help="print the properties of the connectors, too"
    )
    parser.add_argument("--offline", action="store_true", help="do not connect to the clusters")
    add_json_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the plans.

    At the end, raises FailedError for topics that cannot be listed and for flows that conflict; JSON includes
    both.
    """
    flows = flows_from(arguments)
    planned_flows = []
    for planned in valid_plans(flows, layout_from(arguments)):
        flow_plan = _flow_plan(planned, offline=arguments.offline)
        if not arguments.offline:
            flow_plan = _with_schemas(flow_plan)
        planned_flows.append(flow_plan)
        if not arguments.json:
            _print(flow_plan, with_properties=arguments.properties)
    problems = [flow.problem for flow in planned_flows if flow.problem is not None]
    problems += [
        conflict.message
        for flow in planned_flows
        if flow.schemas is not None
        for conflict in flow.schemas.conflicts
    ]
    notes: list[str] = []
    if len(flows) > 1:
        settings = {flow.planned.flow: flow.settings for flow in planned_flows}
        conflicts, notes = find_conflicts(flows, settings, offline=arguments.offline)
        problems = [*(conflict.sentence for conflict in conflicts), *problems]
    if arguments.json:
        print_json(
            {"flows": [_as_json(flow) for flow in planned_flows], "notes": notes, "problems": problems}
        )
        return EXIT_FAILED if problems else EXIT_DONE
    for note in notes:
        print(f"# {note}")
    if problems:
        raise FailedError("\n".join(problems))
    if len(flows) > 1:
        print(f"# {len(flows)} flows: no loop, and no topic that two of them write to")
    return EXIT_DONE


def _flow_plan(planned: Plan, *, offline: bool) -> PlannedFlow:
    settings, warnings = source_settings(planned)
    notes = (*planned.notes, *warnings)
    if offline:
        return PlannedFlow(planned=planned, settings=settings, notes=notes)
    return asyncio.run(_with_topics(planned, settings, notes))


def _with_schemas(flow: PlannedFlow) -> PlannedFlow:
    settings = schema_settings(flow.planned)
    if settings is None:
        return flow
    try:
        return replace(flow, schemas=plan_of(settings))
    except (RegistryError, SettingError) as error:
        problem = f"Schemas are not compared. {error} --offline does without them."
        return replace(flow, problem="\n".join(filter(None, (flow.problem, problem))))


async def _with_topics(planned: Plan, settings: SourceSettings, notes: tuple[str, ...]) -> PlannedFlow:
    try:
        async with connected(settings.source_admin, settings) as source:
            selected = await selected_topics(source, settings)
    except (ClusterError, SettingError) as error:
        # A reference whose file does not exist here yet fails like an unreachable cluster.
        problem = f"Topics are not listed. {error} --offline does without them."
        return PlannedFlow(planned=planned, settings=settings, notes=notes, problem=problem)
    target_of = make_selection(settings).target_topic
    creates, unknown = await _missing_topics(planned, settings, map(target_of, selected.topics))
    topics = tuple(
        TopicPlan(topic=topic, target=target_of(topic), partitions=partitions)
        for topic, partitions in selected.topics.items()
    )
    return PlannedFlow(
        planned=planned,
        settings=settings,
        notes=notes if unknown is None else (*notes, unknown),
        topics=topics,
        creates=creates,
        nothing_selected=selected.nothing_selected,
    )


async def _missing_topics(
    planned: Plan, settings: SourceSettings, copies: Iterable[str]
) -> tuple[tuple[str, ...] | None, str | None]:
    """Returns which topics the flow would create on the target, or None and a sentence if that is not known."""
    checkpoint, heartbeat, _ = companion_settings(planned)
    own = [*internal_topics(settings), *own_topics(checkpoint, heartbeat)]
    try:
        async with connected(settings.target_admin, settings) as target:
            present = await topic_sizes(target)
    except (ClusterError, SettingError) as error:
        return None, f"What would be created is not listed. {error}"
    wanted = dict.fromkeys((*copies, *(topic.name for topic in own)))
    return tuple(name for name in wanted if name not in present), None


def _print(flow: PlannedFlow, *, with_properties: bool) -> None:
    settings = flow.settings
    print(f"{flow.planned.flow}: {settings.source_alias} -> {settings.target_alias}")
    schemas = () if flow.schemas is None else lines_of(flow.schemas)
    for line in (*_copied(flow), *_created(flow), *schemas, *_followed(flow)):
        print(f"  {line}")
    for note in (*flow.notes, flow.nothing_selected):
        if note is not None:
            print(f"# {note}")
    if not with_properties:
        return
    for connector in flow.planned.connectors:
        print(f"# {connector.name}: worker.properties")
        print(_readable(connector.worker_properties))
        print(f"# {connector.name}: connector.properties")
        print(_readable(connector.connector_properties))


def _copied(flow: PlannedFlow) -> Iterator[str]:
    if flow.topics is None:
        yield f"copies topics that match {', '.join(flow.settings.topics)}"
        return
    yield f"copies {counted(len(flow.topics), 'topic')} now"
    for topic in flow.topics:
        yield f"  {topic.topic} -> {topic.target}  ({counted(topic.partitions, 'partition')})"


def _created(flow: PlannedFlow) -> Iterator[str]:
    if flow.creates is None:
        return
    yield f"creates {counted(len(flow.creates), 'topic')} on {flow.settings.target_alias}"
    for name in flow.creates:
        yield f"  {name}"


def _followed(flow: PlannedFlow) -> Iterator[str]:
    """Yields what the flow does for as long as it runs."""
    settings = flow.settings
    checkpoint, heartbeat, _ = companion_settings(flow.planned)
    intervals = [
        (
            f"new topics that match {', '.join(settings.topics)}, and new partitions",
            settings.refresh_topics_s,
        ),
        ("settings of topics", settings.sync_configs_s),
        ("ACLs of topics", settings.sync_acls_s),
    ]
    if checkpoint is not None:
        groups = ", ".join(checkpoint.groups)
        intervals += [
            (f"checkpoints of consumer groups that match {groups}", checkpoint.emit_s),
            (
                "offsets of these groups, and of share groups with such names, on the target",
                checkpoint.sync_s,
            ),
        ]
    if schemas := schema_settings(flow.planned):
        subjects = ", ".join(schemas.subjects)
        intervals.append((f"schemas of subjects that match {subjects}", PASS_INTERVAL_S))
    if heartbeat is not None:
        clusters = " and ".join(beat.target_alias for beat in heartbeat.beats)
        intervals.append((f"heartbeats to {clusters}", heartbeat.interval_s))
    yield "follows"
    for what, every_s in intervals:
        if every_s is not None:
            yield f"  {what}, every {duration(every_s)}"


def _readable(properties: Mapping[str, str]) -> str:
    """Returns properties text that Java reads too, without the escapes that only keys need; plain-text secrets are hidden."""
    lines = {
        key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in shown(properties).items()
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def _as_json(flow: PlannedFlow) -> dict[str, Any]:
    return {
        "name": flow.planned.flow,
        "connectors": [
            {
                "name": connector.name,
                "kind": connector.kind.java_class,
                "workerProperties": shown(connector.worker_properties),
                "connectorProperties": shown(connector.connector_properties),
            }
            for connector in flow.planned.connectors
        ],
        "creates": None if flow.creates is None else list(flow.creates),
        "schemas": None if flow.schemas is None else as_json(flow.schemas),
        "notes": [*flow.notes, *([] if flow.nothing_selected is None else [flow.nothing_selected])],
        "topics": None
        if flow.topics is None
        else [
            {"topic": topic.topic, "target": topic.target, "partitions": topic.partitions}
            for topic in flow.topics
        ],
    }


def find_conflicts(
    flows: Sequence[MirrorFlow], settings: Mapping[str, SourceSettings], *, offline: bool
) -> tuple[tuple[Conflict, ...], list[str]]:
    """Returns the conflicts among *flows*, and a note for each cluster that did not answer.

    *settings* is flow name -> source connector settings. With *offline* no cluster is contacted. A stopped flow conflicts with
    none.
    """
    notes: list[str] = []
    seen = {} if offline else asyncio.run(_cluster_contents(flows, settings, notes))
    routes = [
        FlowRoute(
            flow=flow.metadata.name,
            source=_endpoint(flow.spec.source, seen),
            target=_endpoint(flow.spec.target, seen),
            naming=topic_selection_of(flow),
        )
        for flow in flows
        if flow.spec.state is not State.STOPPED
    ]
    patterns = [pattern for flow in flows for pattern in flow.spec.topics.include]
    return conflicts(routes, samples(patterns)), notes


async def _cluster_contents(
    flows: Sequence[MirrorFlow], settings: Mapping[str, SourceSettings], notes: list[str]
) -> dict[frozenset[str], ClusterContents]:
    """Returns addresses -> cluster id and topics; connects to each cluster once, to all concurrently."""
    clients: dict[frozenset[str], tuple[ClientSettings, SourceSettings]] = {}
    for flow in flows:
        own = settings[flow.metadata.name]
        clients.setdefault(_addresses(flow.spec.source), (own.source_admin, own))
        clients.setdefault(_addresses(flow.spec.target), (own.target_admin, own))
    responses = await asyncio.gather(*(_contents_of(client, own, notes) for client, own in clients.values()))
    return {
        addresses: response
        for addresses, response in zip(clients, responses, strict=True)
        if response is not None
    }


async def _contents_of(
    client: ClientSettings, settings: SourceSettings, notes: list[str]
) -> ClusterContents | None:
    try:
        async with connected(client, settings) as cluster:
            return cluster.cluster_id, frozenset(await topic_sizes(cluster))
    except (ClusterError, SettingError) as error:
        notes.append(f"{client.alias} is compared with other clusters by its addresses only. {error}")
        return None


def _endpoint(cluster: ClusterSpec, seen: Mapping[frozenset[str], ClusterContents]) -> Endpoint:
    addresses = _addresses(cluster)
    cluster_id, topics = seen.get(addresses, (None, None))
    return Endpoint(alias=cluster.alias, addresses=addresses, cluster_id=cluster_id, topics=topics)


def _addresses(cluster: ClusterSpec) -> frozenset[str]:
    return frozenset(address.lower() for address in cluster.bootstrap_servers)
