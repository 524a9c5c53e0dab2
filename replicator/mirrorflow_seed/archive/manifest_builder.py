"""Builds the topics of a manifest from the tasks' receipts and the written files. Pure."""

import re
from collections.abc import Mapping

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.archive.export_plan import ExportRange
from mirrorflow_seed.archive.export_survey import ExportSurvey
from mirrorflow_seed.archive.manifest import (
    ArchivedConfig,
    ArchivedFile,
    ArchivedPartition,
    ArchivedTopic,
    folder_of,
)
from mirrorflow_seed.archive.range_reader import RangeResult
from mirrorflow_seed.errors import ArchiveError

# Spark names a file after its task, whose number is the index of the range in the plan.
_PART = re.compile(r"part-(\d+)-")


def written_files(
    present: Mapping[str, int],
    ranges: tuple[ExportRange, ...],
    results: Mapping[int, RangeResult],
    *,
    location: str,
) -> Mapping[int, tuple[str, int]]:
    """Returns path and size in bytes of each range's file; *present* maps existing paths to sizes.

    A range without records has no file. Raises ArchiveError if a file is missing or unexpected.
    """
    found: dict[int, tuple[str, int]] = {}
    by_index = {one.index: one for one in ranges}
    missing = [one.index for one in ranges if one.index not in results]
    for path, size_bytes in present.items():
        match = _PART.search(path.rpartition("/")[2])
        index = int(match.group(1)) if match else -1
        one = by_index.get(index)
        expected = one is not None and path.startswith(
            folder_of(TopicPartition(one.topic, one.partition)) + "/"
        )
        if not expected or index in found:
            raise ArchiveError(
                location=location,
                problem=f"{path} was written by another process meanwhile",
                action="export into a folder of its own",
            )
        found[index] = (path, size_bytes)
    missing += [index for index, one in results.items() if one.tally.records and index not in found]
    if missing:
        raise ArchiveError(
            location=location,
            problem=f"the files of {len(missing)} ranges are missing, although Spark reported success",
            action="start the export again",
        )
    return found


def topics_of(
    found: ExportSurvey,
    ranges: tuple[ExportRange, ...],
    results: Mapping[int, RangeResult],
    written: Mapping[int, tuple[str, int]],
) -> tuple[ArchivedTopic, ...]:
    """Returns the manifest's topics, sorted by name."""
    pieces: dict[TopicPartition, list[ExportRange]] = {one: [] for one in found.extents}
    for one in ranges:
        pieces[TopicPartition(one.topic, one.partition)].append(one)

    def partition(key: TopicPartition) -> ArchivedPartition:
        mine = sorted(pieces[key], key=lambda one: one.start)
        archived = tuple(
            ArchivedFile(
                path=written[one.index][0],
                size_bytes=written[one.index][1],
                start=one.start,
                end=one.end,
                codec=results[one.index].codec,
                tally=results[one.index].tally,
            )
            for one in mine
            if results[one.index].tally.records
        )
        gaps = tuple(gap for one in mine for gap in results[one.index].gaps)
        extent = found.extents[key]
        return ArchivedPartition(
            number=key.partition, start=extent.start, end=extent.end, files=archived, gaps=gaps
        )

    return tuple(
        ArchivedTopic(
            name=name,
            topic_id=found.topic_ids[name],
            configs=tuple(
                ArchivedConfig(
                    name=one.name, value=one.value, source=int(one.source), read_only=one.read_only
                )
                for one in found.configs.get(name, ())
                if not one.sensitive
            ),
            partitions=tuple(partition(key) for key in sorted(found.extents) if key.topic == name),
        )
        for name in sorted(found.topic_ids)
    )
