"""`mirrorflow offsets`: prints each group's current offsets on both sides, or translates offsets of applications; changes nothing.

The checkpoint connector need not run: the command reads the same topics and translates offsets with the
connector's own code. Output is plain text, or one JSON object per line. Groups without offsets to translate are reported on
stderr; so are failed requests for a group, or as the last object. The other groups continue.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from mirrorflow_cli.application_offsets import STDIN, read_list, translate_list
from mirrorflow_cli.clusters import connected
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, FailedError, UsageError
from mirrorflow_cli.flow_arguments import (
    checkpoint_settings,
    flow_from,
    layout_from,
    source_settings,
    valid_plan,
)
from mirrorflow_cli.flow_flags import add_flow_arguments
from mirrorflow_cli.output import add_json_lines_argument, print_table
from mirrorflow_core.errors import ClusterError
from mirrorflow_core.offsets.checkpoints import (
    Group,
    GroupFacts,
    GroupOffset,
    group_offsets,
    has_members,
    writable,
)
from mirrorflow_core.offsets.offset_list_formats import format_translations
from mirrorflow_core.offsets.offset_translation import translate_group
from mirrorflow_core.offsets.share_offsets import ShareGroupFacts, share_group_offsets, writable_share_group
from mirrorflow_core.settings import CheckpointSettings, SourceSettings
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_operator.plan.properties import plan_all
from mirrorflow_replicator.config.plugins import make_group_selection, make_topic_filter
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders
from mirrorflow_replicator.connectors.share_groups import ShareGroups
from mirrorflow_replicator.http.group_offsets import group_offset_json

COLUMNS = ("group", "partition", "source", "target", "translation", "age", "written", "why")
FAILOVER_COLUMNS = ("group", "partitions", "reread", "of which uncertain", "starts at")
GROUPS_AT_ONCE = 16  # a coordinator answers this many requests within some hundredths of a second
TRANSLATE = "translate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        metavar=TRANSLATE,
        help="translate offsets that applications keep outside Kafka, to the other cluster",
    )
    parser.add_argument(
        "offsets",
        nargs="?",
        metavar="FILE",
        help="with translate: topic,partition,offset on each line, or JSON (default: stdin)",
    )
    add_flow_arguments(parser, addresses=True)
    # argparse leaves names that follow an option over.
    parser.set_defaults(add_flow_file=parser.get_default("add_files"), add_files=_add_names, names=())
    parser.add_argument(
        "--reverse", action="store_true", help="with translate: from the target to the source"
    )
    parser.add_argument("--group", metavar="NAME", help="consumer group (default: all groups of the flow)")
    parser.add_argument(
        "--dry-run-failover",
        action="store_true",
        help="print how many records each group would reread if it failed over now",
    )
    add_json_lines_argument(parser)


def _add_names(arguments: argparse.Namespace, names: Sequence[str]) -> bool:
    """Stores positional *names*; returns False if one of them is an unknown flag."""
    arguments.names = names
    return not any(name.startswith("-") and name != STDIN for name in names)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the offsets; returns 1 if a request for a group failed, or an offset cannot be translated."""
    names = [name for name in (arguments.action, arguments.offsets, *arguments.names) if name is not None]
    if names[:1] == [TRANSLATE]:
        return _translate(arguments, names[1:])
    if arguments.reverse:
        raise UsageError("--reverse is for `mirrorflow offsets translate`.")
    if arguments.json and arguments.dry_run_failover:
        raise UsageError(
            "--dry-run-failover cannot be combined with --json, whose lines have readAgainAtLeast and readAgainAtMost."
        )
    if names and not arguments.add_flow_file(arguments, names):
        raise UsageError(f"unrecognized arguments: {' '.join(names)}")
    if not arguments.file and not arguments.groups:
        arguments.groups = [".*"]  # With flags instead of a file, all groups are shown.
    flow, layout = flow_from(arguments), layout_from(arguments)
    valid_plan(flow, layout)
    planned = plan_all(flow, layout)
    source, _ = source_settings(planned)
    report = asyncio.run(read_group_offsets(checkpoint_settings(planned), source, arguments.group))
    if arguments.json:
        _print_json(report.lines)
    elif arguments.dry_run_failover:
        print_table(FAILOVER_COLUMNS, list(failover(report.lines)))
    else:
        _print_lines(report.lines)
    for note in report.notes:
        print(note, file=sys.stderr)
    if not report.problems:
        return EXIT_DONE
    arguments.report(arguments, "\n".join(report.problems))
    return EXIT_FAILED


def _translate(arguments: argparse.Namespace, names: Sequence[str]) -> int:
    if arguments.group or arguments.dry_run_failover:
        raise UsageError("translate cannot be combined with --group and --dry-run-failover.")
    if len(names) > 1:
        raise UsageError(f"unrecognized arguments: {' '.join(names[1:])}")
    form, offsets = read_list(names[0] if names else STDIN, arguments)
    flow, layout = flow_from(arguments), layout_from(arguments)
    valid_plan(flow, layout)
    planned = plan_all(flow, layout)
    source, _ = source_settings(planned)
    translations, notes = asyncio.run(
        translate_list(checkpoint_settings(planned), source, offsets, reverse=arguments.reverse)
    )
    for line in format_translations(form, translations):
        print(line)
    unknown = sum(translation.offset is None for translation in translations)
    if unknown:
        notes.append(f"{unknown} of {len(translations)} offsets cannot be translated; each has its reason.")
    for note in notes:
        print(note, file=sys.stderr)
    return EXIT_FAILED if unknown else EXIT_DONE


def _print_json(lines: Sequence[GroupOffset]) -> None:
    now_ms = time.time_ns() // 1_000_000
    for line in lines:
        print(json.dumps(group_offset_json(line, now_ms=now_ms), ensure_ascii=False))


def _print_lines(lines: Sequence[GroupOffset]) -> None:
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            line.group,
            f"{line.topic}-{line.partition}",
            str(line.source_offset),
            "-" if line.target_offset is None else str(line.target_offset),
            _translation(line),
            _age(line.checkpoint_written_ms, now_ms),
            "yes" if line.written else "no",
            line.why or "",
        )
        for line in lines
    ]
    print_table(COLUMNS, rows)


def _translation(offset: GroupOffset) -> str:
    if offset.translation != "bound" or offset.target_offset is None or offset.at_most is None:
        return offset.translation
    return f"bound, {offset.at_most - offset.target_offset} or fewer again"


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
    and what its start offset comes from. Where the most is unknown, it has the least.
    """
    for group in sorted({line.group for line in lines}):
        own = [line for line in lines if line.group == group]
        known = [line.again for line in own if line.begins_at is not None]
        least = sum(least for least, _ in known)
        most = sum(most or 0 for _, most in known)
        without = len(own) - len(known)
        begins = {
            "its checkpoint" if line.group_offset is None else "its offset"
            for line in own
            if line.begins_at is not None
        }
        if without:
            begins.add(f"auto.offset.reset in {without}")
        # Where a group has no start offset, the consumer's setting decides: it may read the whole copy again.
        is_known = not without and all(most is not None for _, most in known)
        again = str(most) if is_known else f"at least {least}"
        uncertain = str(max(0, most - least)) if is_known else "unknown"
        yield group, str(len(own)), again, uncertain, ", ".join(sorted(begins))


@dataclass(frozen=True, slots=True)
class GroupOffsetReport:
    """Offsets, a note for each group that is not synchronised, a problem for each failed request."""

    lines: tuple[GroupOffset, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


async def read_group_offsets(
    settings: CheckpointSettings, source: SourceSettings, group_name: str | None
) -> GroupOffsetReport:
    """Returns the offsets of the group *group_name*, or of all groups that the flow translates.

    Raises FailedError and ClusterError.
    """
    problems: list[str] = []
    async with _clusters(settings, source) as clusters:
        known = await _read_known_offsets(settings, clusters, problems)
        listed = await _list_groups(clusters.source, problems)
        reader = _GroupReader(settings, clusters, known, await _list_groups(clusters.target, problems))
        selects = make_group_selection(settings).selects
        chosen = [
            item
            for name, item in sorted(listed.items())
            if (name == group_name if group_name else selects(name))
        ]
        if group_name and not chosen:
            raise FailedError(
                f"{settings.source_alias} has no group {group_name}, or Describe on it is not granted."
            )
        translated = [group for group in chosen if group.is_consumer_group or group.is_share_group]
        offsets: list[GroupOffset] = []
        for begin in range(0, len(translated), GROUPS_AT_ONCE):
            some = translated[begin : begin + GROUPS_AT_ONCE]
            responses = await asyncio.gather(*(reader.at(group) for group in some), return_exceptions=True)
            for group, response in zip(some, responses, strict=True):
                if isinstance(response, ClusterError):
                    problems.append(f"Reading group {group.name} failed: {response}")
                elif isinstance(response, BaseException):
                    raise response
                else:
                    offsets += response
    notes = (
        _skip_note(group, settings, named=bool(group_name)) for group in chosen if group not in translated
    )
    return GroupOffsetReport(
        tuple(offsets), tuple(note for note in notes if note is not None), tuple(problems)
    )


async def _list_groups(cluster: Cluster, problems: list[str]) -> dict[str, Group]:
    listed, problem = await groups.list_reachable_groups(cluster)
    if problem is not None:
        problems.append(f"Not every broker of {cluster.alias} lists its groups: {problem}")
    return listed


def _skip_note(group: Group, settings: CheckpointSettings, *, named: bool) -> str | None:
    why = group.why_not
    if why is None and named:
        why = f"it belongs to an application ({group.protocol_type}), not to consumers"
    return (
        f"Group {group.name} of {settings.source_alias} is not synchronised: {why}."
        if why is not None
        else None
    )


async def _read_known_offsets(
    settings: CheckpointSettings, clusters: OffsetReaders, problems: list[str]
) -> KnownOffsets:
    known = KnownOffsets(settings, clusters)
    read = False
    try:
        read = await known.read_checkpoints()
    except ClusterError as error:
        problems.append(f"Checkpoints cannot be read from {known.checkpoints_topic}: {error}")
    try:
        await known.open_syncs(must_read_to_end=not read)
    except ClusterError as error:
        problems.append(f"Offset syncs cannot be read: {error}")
    try:
        await known.read_maps()
    except ClusterError as error:
        problems.append(f"{known.map_topic} cannot be read, so only offset syncs are used: {error}")
    try:
        await known.read_opposite_maps()
    except ClusterError as error:
        problems.append(f"{known.opposite_map_topic} cannot be read: {error}")
    problems += known.skipped.values()
    return known


@contextlib.asynccontextmanager
async def _clusters(settings: CheckpointSettings, source: SourceSettings) -> AsyncIterator[OffsetReaders]:
    async with contextlib.AsyncExitStack() as stack:
        syncs = settings.source_consumer if settings.syncs_on_source else settings.target_consumer
        clients = (settings.source_admin, settings.target_admin, syncs, settings.target_consumer)
        connections = [await stack.enter_async_context(connected(client, source)) for client in clients]
        yield OffsetReaders(
            source=connections[0], target=connections[1], syncs=connections[2], reader=connections[3]
        )


class _GroupReader:
    """Reads the offsets of one group at a time."""

    def __init__(
        self,
        settings: CheckpointSettings,
        clusters: OffsetReaders,
        known: KnownOffsets,
        target_groups: dict[str, Group],
    ) -> None:
        self._settings = settings
        self._clusters = clusters
        self._known = known
        self._target_groups = target_groups
        self._selects = make_topic_filter(settings)

    async def at(self, group: Group) -> list[GroupOffset]:
        """Returns the lines of *group*. Raises ClusterError."""
        if group.is_share_group:
            return await self._share_group_at(group)
        known, clusters = self._known, self._clusters
        own = await groups.fetch_offsets(clusters.source, group.name)
        now = translate_group(own, selects=self._selects, rename=known.rename, syncs=known.translator)
        target = await groups.fetch_offsets(clusters.target, group.name)
        on_target = self._target_groups.get(group.name)
        if on_target is not None and not on_target.state:  # brokers before Kafka 2.6 list none
            on_target = await groups.describe_group(clusters.target, group.name)
        ends = await admin.list_offsets(clusters.target, now, LATEST) if now else {}
        facts = GroupFacts(
            group=group.name,
            translated=now,
            points=known.checkpoints.of(group.name),
            written_ms=known.checkpoints.written_ms,
            target=target,
            ends={partition: end.offset for partition, end in ends.items() if not end.error},
            writable=writable(on_target),
            is_synchronised=self._settings.sync_s is not None,
            has_members_on_source=has_members(group),
            has_members_on_target=has_members(on_target),
        )
        return list(group_offsets(facts))

    async def _share_group_at(self, group: Group) -> list[GroupOffset]:
        clusters, on_target = self._clusters, self._target_groups.get(group.name)
        reader = ShareGroups(
            clusters.source, clusters.target, selects_topic=self._selects, rename=self._known.rename
        )
        facts = ShareGroupFacts(
            group=group.name,
            translated=await reader.translated(group.name, self._known.translator),
            target=await reader.starts_on_target(group.name),
            writable=writable_share_group(on_target),
            is_synchronised=self._settings.sync_s is not None,
            has_members_on_source=has_members(group),
            has_members_on_target=has_members(on_target),
        )
        return list(share_group_offsets(facts))
