"""`mirrorflow plan`: the connectors, their properties with references unresolved, and the topics that match now.

With several files also what the flows would do to each other: loops and topics that two of them write to end it with status 1.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence

from mirrorflow_cli.clusters import reached, selected_topics
from mirrorflow_cli.errors import EXIT_DONE, FailedError
from mirrorflow_cli.flows import add_flow_arguments, flows_from, layout_from
from mirrorflow_cli.planning_together import found_together
from mirrorflow_cli.settings import source_settings
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan.plan import Plan, plan
from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.errors import ClusterError, SettingError
from mirrorflow_replicator.settings import SourceSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow plan`."""
    add_flow_arguments(parser, addresses=True, several=True)
    parser.add_argument("--offline", action="store_true", help="do not ask clusters what they are and hold")


def execute(arguments: argparse.Namespace) -> int:
    """Print; a source that cannot be reached is a sentence, not a failure. Raises FailedError for flows that conflict."""
    flows = flows_from(arguments)
    layout = layout_from(arguments)
    settings: dict[str, SourceSettings] = {}
    for flow in flows:
        planned = plan(flow, layout)
        if len(flows) > 1:
            print(f"# Flow {planned.flow}")
        _print_connectors(planned)
        settings[planned.flow], warnings = source_settings(planned)
        for note in (*planned.notes, *warnings):
            print(f"# {note}")
        if not arguments.offline:
            asyncio.run(_print_topics(settings[planned.flow]))
    if len(flows) > 1:
        _look_together(flows, settings, offline=arguments.offline)
    return EXIT_DONE


def _look_together(
    flows: Sequence[MirrorFlow], settings: Mapping[str, SourceSettings], *, offline: bool
) -> None:
    conflicts, notes = found_together(flows, settings, offline=offline)
    for note in notes:
        print(f"# {note}")
    if conflicts:
        raise FailedError("\n".join(conflict.sentence for conflict in conflicts))
    print(f"# {len(flows)} flows: no loop, and no topic that two of them write to")


def _print_connectors(planned: Plan) -> None:
    for connector in planned.connectors:
        print(f"# {connector.name}")
        print(f"# {connector.name}: worker.properties")
        print(_readable(connector.worker_properties))
        print(f"# {connector.name}: connector.properties")
        print(_readable(connector.connector_properties))


def _readable(properties: Mapping[str, str]) -> str:
    """Text that Java reads as well, without the escapes that only keys need."""
    lines = {key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in properties.items()}
    return "".join(f"{key}={value}\n" for key, value in lines.items())


async def _print_topics(settings: SourceSettings) -> None:
    try:
        async with reached(settings.source_admin, settings) as source:
            topics = await selected_topics(source, settings)
    except (ClusterError, SettingError) as error:
        # A reference that has no file here yet is as good a reason as a closed network.
        print(f"# Topics are not listed. {error}")
        return
    selection = make_selection(settings)
    print(f"# {len(topics)} topics match now")
    for topic, partitions in topics.items():
        print(f"{topic} -> {selection.target_topic(topic)}  ({partitions} partitions)")
