"""From what tasks have read and what is there to the topics of a manifest: decisions only."""

import re
from collections.abc import Mapping

from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_seed.archive.manifest import (
    ArchivedConfig,
    ArchivedFile,
    ArchivedPartition,
    ArchivedTopic,
    folder_of,
)
from mirrorflow_seed.archive.planning import Range
from mirrorflow_seed.archive.reading import Receipt
from mirrorflow_seed.archive.surveying import Survey
from mirrorflow_seed.errors import ArchiveError

# Spark names a file by its task, which is the place of the range in the plan.
_PART = re.compile(r"part-(\d+)-")


def written_files(
    present: Mapping[str, int],
    ranges: tuple[Range, ...],
    receipts: Mapping[int, Receipt],
    *,
    location: str,
) -> Mapping[int, tuple[str, int]]:
    """Path and size of the file of each range that has records; *present* is what is there, by path.

    Raises ArchiveError where anything else is there, or something is not.
    """
    found: dict[int, tuple[str, int]] = {}
    by_index = {one.index: one for one in ranges}
    missing = [one.index for one in ranges if one.index not in receipts]
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
                problem=f"{path} was written by somebody else meanwhile",
                action="export into a folder of its own",
            )
        found[index] = (path, size_bytes)
    missing += [index for index, one in receipts.items() if one.tally.records and index not in found]
    if missing:
        raise ArchiveError(
            location=location,
            problem=f"the files of {len(missing)} ranges are not there although Spark says so",
            action="start the export again",
        )
    return found


def topics_of(
    found: Survey,
    ranges: tuple[Range, ...],
    receipts: Mapping[int, Receipt],
    written: Mapping[int, tuple[str, int]],
) -> tuple[ArchivedTopic, ...]:
    """The manifest's topics, by name."""
    pieces: dict[TopicPartition, list[Range]] = {one: [] for one in found.extents}
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
                codec=receipts[one.index].codec,
                tally=receipts[one.index].tally,
            )
            for one in mine
            if receipts[one.index].tally.records
        )
        gaps = tuple(gap for one in mine for gap in receipts[one.index].gaps)
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
