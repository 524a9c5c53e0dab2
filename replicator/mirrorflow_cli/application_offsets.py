"""`mirrorflow offsets translate`: translates offsets that applications keep outside Kafka; changes nothing.

The list is read as a whole before anything is contacted or printed. Offsets of the source are also translated while the source
cannot be reached: that is when they are needed.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mirrorflow_cli.clusters import connected
from mirrorflow_cli.errors import UsageError
from mirrorflow_core.errors import ClusterError, InvalidOffsetsError, UnreachableError
from mirrorflow_core.offsets.application_offsets import ApplicationOffset, ApplicationTranslation
from mirrorflow_core.offsets.offset_list_formats import OffsetListFormat, parse_offsets
from mirrorflow_core.settings import CheckpointSettings, SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.application_offsets import ApplicationOffsets
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders, TargetReaders

STDIN: Final = "-"
LIST_MAX_BYTES: Final = 64 << 20  # 200,000 offsets with the longest topic names

CSV_FORMS: Final = (OffsetListFormat.CSV, OffsetListFormat.CSV_WITH_HEADER)


def read_list(
    name: str, arguments: argparse.Namespace
) -> tuple[OffsetListFormat, tuple[ApplicationOffset, ...]]:
    """Returns the form and the offsets of the file *name*, or of stdin. Raises UsageError."""
    if name == STDIN and arguments.file == STDIN:
        raise UsageError("Only one of -f and the offsets can be read from stdin; name a file for the other.")
    try:
        if name == STDIN:
            content = sys.stdin.buffer.read(LIST_MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                content = file.read(LIST_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from error
    if len(content) > LIST_MAX_BYTES:
        raise UsageError(f"{name} is larger than {LIST_MAX_BYTES >> 20} MiB; divide the list.")
    try:
        form, offsets = parse_offsets(content)
    except InvalidOffsetsError as error:
        label = "stdin" if name == STDIN else name
        raise UsageError("\n".join(f"{label}, {problem}" for problem in error.problems)) from error
    return (OffsetListFormat.JSON_LINES if arguments.json and form in CSV_FORMS else form), offsets


async def translate_list(
    settings: CheckpointSettings,
    source_settings: SourceSettings,
    offsets: Sequence[ApplicationOffset],
    *,
    reverse: bool,
) -> tuple[list[ApplicationTranslation], list[str]]:
    """Returns the translations, and a note for everything that could not be read. Raises SettingError, ClusterError."""
    notes: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        target = await stack.enter_async_context(connected(settings.target_admin, source_settings))
        reader = await stack.enter_async_context(connected(settings.target_consumer, source_settings))
        source: Cluster | None = None
        try:
            source = await stack.enter_async_context(connected(settings.source_admin, source_settings))
        except UnreachableError as error:
            if reverse:
                raise
            notes.append(
                f"Offsets are translated by what the target has, because the source is away: {error}"
            )
        known, has_syncs = await _opened(settings, source_settings, stack, (source, target, reader))
        if has_syncs:
            try:
                await known.open_syncs(must_read_to_end=False)
            except ClusterError as error:
                notes.append(f"Offset syncs cannot be read: {error}")
        try:
            await known.read_maps()
        except ClusterError as error:
            notes.append(f"{known.map_topic} cannot be read, so only offset syncs are used: {error}")
        notes += known.skipped.values()
        aliases = (settings.source_alias, settings.target_alias)
        translator = ApplicationOffsets(known, aliases, source=source, target=target)
        return await translator.translate(offsets, reverse=reverse), notes


async def _opened(
    settings: CheckpointSettings,
    source_settings: SourceSettings,
    stack: contextlib.AsyncExitStack,
    clusters: tuple[Cluster | None, Cluster, Cluster],
) -> tuple[KnownOffsets, bool]:
    """Returns what reads known offsets from *clusters* (source, target, reader), and whether it can read offset syncs."""
    source, target, reader = clusters
    if source is None and settings.syncs_on_source:
        return KnownOffsets(settings, TargetReaders(target=target, syncs=target, reader=reader)), False
    client = settings.source_consumer if settings.syncs_on_source else settings.target_consumer
    syncs = await stack.enter_async_context(connected(client, source_settings))
    if source is None:
        return KnownOffsets(settings, TargetReaders(target=target, syncs=syncs, reader=reader)), True
    return KnownOffsets(
        settings, OffsetReaders(source=source, target=target, syncs=syncs, reader=reader)
    ), True
