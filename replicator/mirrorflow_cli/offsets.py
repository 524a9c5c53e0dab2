"""`mirrorflow offsets`: prints each group's current offsets on both sides; changes nothing.

The checkpoint connector need not run: `survey` reads the same topics. Output is plain text, or one JSON
object per line. Failed requests for a group, and groups that have no offsets to translate, are reported on
stderr.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence

from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, FailedError
from mirrorflow_cli.flow_plans import valid_plan
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_cli.settings import source_settings
from mirrorflow_cli.survey import survey
from mirrorflow_core.offsets.group_offsets import GroupOffset
from mirrorflow_core.settings import CheckpointSettings
from mirrorflow_operator.plan.plan import ConnectorKind, Plan, plan_of_all
from mirrorflow_replicator.config.checkpoint import parse_checkpoint
from mirrorflow_replicator.http.group_offsets import line

COLUMNS = ("group", "partition", "source", "target", "translation", "age", "written", "why")
AGAIN_COLUMNS = ("group", "partitions", "reads again", "of which not sure", "begins by")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `mirrorflow offsets`."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument(
        "--group", metavar="NAME", help="this one only (default: all that the flow translates)"
    )
    parser.add_argument(
        "--dry-run-failover",
        action="store_true",
        help="say how many records each group would read again if it went on on the target now",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the offsets; returns 1 if a request for a group failed."""
    if not arguments.file and not arguments.groups:
        arguments.groups = [".*"]  # With addresses alone, all groups are shown.
    flow, layout = flow_from(arguments), layout_from(arguments)
    valid_plan(flow, layout)
    planned = plan_of_all(flow, layout)
    source, _ = source_settings(planned)
    found = asyncio.run(survey(_checkpoint(planned), source, arguments.group))
    if arguments.json:
        _print_json(found.lines)
    elif arguments.dry_run_failover:
        print_table(AGAIN_COLUMNS, list(failover(found.lines)))
    else:
        _print_lines(found.lines)
    for sentence in (*found.notes, *found.problems):
        print(sentence, file=sys.stderr)
    return EXIT_FAILED if found.problems else EXIT_DONE


def _checkpoint(planned: Plan) -> CheckpointSettings:
    for connector in planned.connectors:
        if connector.kind is ConnectorKind.CHECKPOINT:
            return parse_checkpoint(connector.connector_properties, connector.worker_properties)
    raise FailedError(f"Flow {planned.flow} has no checkpoint connector; spec.connectors.checkpoint says so.")


def _print_json(lines: Sequence[GroupOffset]) -> None:
    now_ms = time.time_ns() // 1_000_000
    for one in lines:
        print(json.dumps(line(one, now_ms=now_ms), ensure_ascii=False))


def _print_lines(lines: Sequence[GroupOffset]) -> None:
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            one.group,
            f"{one.topic}-{one.partition}",
            str(one.source_offset),
            "-" if one.target_offset is None else str(one.target_offset),
            _translation(one),
            _age(one.checkpoint_written_ms, now_ms),
            "yes" if one.written else "no",
            one.why,
        )
        for one in lines
    ]
    print_table(COLUMNS, rows)


def _translation(one: GroupOffset) -> str:
    if one.translation != "bound" or one.target_offset is None or one.at_most is None:
        return one.translation
    return f"bound, {one.at_most - one.target_offset} or fewer again"


def _age(written_ms: int | None, now_ms: int) -> str:
    """Returns the age of the checkpoint, as 90s, 15m or 3h; "-" if there is none."""
    if written_ms is None:
        return "-"
    seconds = max(0, now_ms - written_ms) // 1000
    return (
        f"{seconds}s" if seconds < 120 else f"{seconds // 60}m" if seconds < 7200 else f"{seconds // 3600}h"
    )


def failover(lines: Sequence[GroupOffset]) -> Iterator[tuple[str, ...]]:
    """Yields one row per group for a failover now.

    A row has the group's partitions, the most records it would read again, how many of these are uncertain,
    and what its start offset comes from.
    """
    for group in sorted({one.group for one in lines}):
        own = [one for one in lines if one.group == group]
        known = [one.again for one in own if one.begins_at is not None]
        least = sum(least for least, _ in known)
        most = sum(most or 0 for _, most in known)
        without = len(own) - len(known)
        begins = {
            "its checkpoint" if one.group_offset is None else "its offset"
            for one in own
            if one.begins_at is not None
        }
        if without:
            begins.add(f"auto.offset.reset in {without}")
        again = str(most) if all(most is not None for _, most in known) else f"at least {least}"
        yield group, str(len(own)), again, str(max(0, most - least)), ", ".join(sorted(begins))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints *rows* below the column names, each column as wide as its widest cell."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    for row in (columns, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
