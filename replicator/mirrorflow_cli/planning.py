"""`mirrorflow plan`: the connectors, their properties with references unresolved, and the topics that match now."""

import argparse
import asyncio
from collections.abc import Mapping

from mirrorflow_cli.clusters import reached, selected_topics
from mirrorflow_cli.errors import EXIT_DONE
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.settings import source_settings
from mirrorflow_operator.plan.plan import Plan, plan
from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.errors import ClusterError, SettingError
from mirrorflow_replicator.settings import SourceSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow plan`."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--offline", action="store_true", help="do not ask the source which topics match")


def execute(arguments: argparse.Namespace) -> int:
    """Print; a source that cannot be reached is a sentence, not a failure."""
    flow = flow_from(arguments)
    planned = plan(flow, layout_from(arguments))
    _print_connectors(planned)
    settings, warnings = source_settings(planned)
    for note in (*planned.notes, *warnings):
        print(f"# {note}")
    if not arguments.offline:
        asyncio.run(_print_topics(settings))
    return EXIT_DONE


def _print_connectors(planned: Plan) -> None:
    for connector in planned.connectors:
        later = "" if connector.available else "  (with the next release)"
        print(f"# {connector.name}{later}")
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
