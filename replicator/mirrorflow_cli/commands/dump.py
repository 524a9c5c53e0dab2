"""`mirrorflow dump`: prints the records of a flow's internal topics, one per line; changes nothing.

It prints the records that still exist, in log order; of positions only the newest for each partition, unless `--all` is
given. A record that cannot be decoded is printed as unreadable, and reading continues, as in the connectors. These topics hold no
payloads of users.
"""

import argparse
import asyncio
import json
from dataclasses import replace

from mirrorflow_cli.errors import EXIT_DONE
from mirrorflow_cli.flow_arguments import flow_from, layout_from, source_settings, valid_plan
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.internal_records import TOPICS, DumpTopic, decoded, read_topic
from mirrorflow_cli.output import add_json_lines_argument, rfc3339
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.records import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = sorted(TOPICS)
    parser.add_argument("what", choices=kinds, metavar="WHAT", help=", ".join(kinds))
    add_flow_arguments(parser, addresses=True)
    parser.add_argument("--all", action="store_true", help="print superseded positions, too")
    add_json_lines_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the records. Raises FailedError if the topic does not exist or may not be described."""
    planned = valid_plan(flow_from(arguments), layout_from(arguments))
    settings, _ = source_settings(planned)
    topic = TOPICS[arguments.what](planned, settings)
    if arguments.all:
        topic = replace(topic, newest_only=False)
    asyncio.run(_dump(topic, settings, as_json=arguments.json))
    return EXIT_DONE


async def _dump(topic: DumpTopic, settings: SourceSettings, *, as_json: bool) -> None:
    async for partition, record in read_topic(topic, settings):
        print(_line(topic, partition, record, as_json=as_json))


def _line(topic: DumpTopic, partition: int, record: Record, *, as_json: bool) -> str:
    fields = decoded(topic, record)
    if as_json:
        whole = {
            "cluster": topic.client.alias,
            "topic": topic.name,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "record": fields,
        }
        return json.dumps(whole, ensure_ascii=False)
    text = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
    return f"{topic.name}-{partition}@{record.offset} {_timestamp(record.timestamp)} {text}"


def _quoted(value: object) -> str:
    """Returns *value* as text, quoted as JSON unless it is one plain word."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if text and text.isprintable() and not set(text) & set(" \"'=") else json.dumps(text)


def _timestamp(timestamp_ms: int) -> str:
    try:
        return rfc3339(timestamp_ms)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
