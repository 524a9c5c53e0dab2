"""Stores the plan of an increment, and finds what a killed export has already written of it.

    _pending/00000003/plan.json                    the plan of commit 3: its ranges and frozen ends
    _pending/00000003/<plan id>/<result>.json      what a task has exported, one for each file

An export continues the plan of the next commit, if there is one. Two exports that run at once may both work on it; each
file belongs to one attempt, and the first commit wins. What belongs to a plan is deleted only when its commit exists, so
no export can commit files that a different one deletes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.archive.commit_log import PENDING_FOLDER, ArchiveState, CommitLog
from mirrorflow_seed.archive.export_plan import ExportRange
from mirrorflow_seed.archive.export_task import ExportedFile, place_of
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest, as_json, from_json
from mirrorflow_seed.errors import ArchiveConflictError, ArchiveOccupiedError
from mirrorflow_seed.storage_folder import TEMPORARY_FOLDER, StorageFolder

FORMAT: Final = 1
PLAN_NAME: Final = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """The plan of commit *number*: the content that it adds, without files, and the ranges to export for it."""

    plan_id: str
    number: int
    content: Manifest
    ranges: tuple[ExportRange, ...] = ()
    replaced: tuple[str, ...] = ()  # the files that a compaction replaces

    @property
    def results(self) -> str:
        """The folder for the results of the plan's tasks."""
        return f"{PENDING_FOLDER}/{self.number:08d}/{self.plan_id}"

    def encode(self) -> bytes:
        """Returns it as JSON."""
        return json.dumps(
            {
                "format": FORMAT,
                "plan_id": self.plan_id,
                "number": self.number,
                "content": as_json(self.content),
                "ranges": [asdict(part) for part in self.ranges],
                "replaced": self.replaced,
            }
        ).encode()

    @classmethod
    def decode(cls, text: bytes) -> "ExportPlan":
        """Returns what `encode` has written. Raises ValueError, TypeError, KeyError or AttributeError for other text."""
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise ValueError(raw["format"])
        return cls(
            plan_id=raw["plan_id"],
            number=raw["number"],
            content=from_json(raw["content"]),
            ranges=tuple(ExportRange(**part) for part in raw["ranges"]),
            replaced=tuple(raw["replaced"]),
        )


class PendingExport:
    """The plan of commit *number* in *folder*, and what was exported of it."""

    def __init__(self, folder: StorageFolder, number: int) -> None:
        self._folder = folder
        self._parent = f"{PENDING_FOLDER}/{number:08d}"
        self._path = f"{self._parent}/{PLAN_NAME}"

    def read(self) -> ExportPlan | None:
        """Returns the stored plan; None if there is none, or if it cannot be read."""
        text = self._folder.read(self._path)
        try:
            return None if text is None else ExportPlan.decode(text)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def store(self, plan: ExportPlan) -> ExportPlan:
        """Stores *plan*, and returns the plan to work on: that of a different export, if it was first.

        Raises ArchiveConflictError if that one merges files.
        """
        if self._folder.create(self._path, plan.encode()):
            return plan
        first = self.read() or plan
        if first.replaced and not plan.replaced:
            raise ArchiveConflictError(
                location=self._folder.address,
                problem="a different export is merging its small files",
                action="start this export again when the other one has ended; it continues there",
            )
        return first

    def discard(self, archived: Manifest) -> None:
        """Deletes the plan, and all files of it that are not *archived*; its commit exists.

        A task that was frozen may write a file and its result after the plan is deleted: the folder of results names its plan.
        """
        plan = self.read()
        plan_ids = self._folder.entries(self._parent) - {PLAN_NAME}
        replaced: tuple[str, ...] = ()
        if plan is not None:
            plan_ids, replaced = plan_ids | {plan.plan_id}, plan.replaced
        if plan_ids:
            known = {file.path for file in archived.files}
            marks = [f"/part-{plan_id}-" for plan_id in plan_ids]
            for path in self._folder.data():
                if path not in known and (path in replaced or any(mark in path for mark in marks)):
                    self._folder.delete(path)
            for plan_id in plan_ids:
                self._folder.delete(f"{TEMPORARY_FOLDER}/{plan_id}")
        self._folder.delete(self._parent)

    def exported(self, plan: ExportPlan, present: Mapping[str, int]) -> list[ExportedFile]:
        """Returns what was exported of *plan*, in any order; *present* maps the paths of all files to their sizes."""
        results = []
        parts = {part.index: part for part in plan.ranges}
        for _, text in self._folder.read_each(list(self._folder.files(plan.results))):
            try:
                exported = ExportedFile.decode(text)
            except (ValueError, TypeError, KeyError):
                continue
            if exported.index in parts and _exists(parts[exported.index], exported, present):
                results.append(exported)
        return results


def continues(planned: Manifest, current: Manifest) -> bool:
    """Whether the source has all that was *planned*: the same topics, up to the planned ends.

    *current* is what it has now, after the same commit.
    """
    topic_ids = {topic.name: topic.topic_id for topic in current.topics}
    partitions = current.partitions
    return (
        planned.isolation == current.isolation
        and planned.source_cluster_id == current.source_cluster_id
        and all(topic_ids.get(topic.name) == topic.topic_id for topic in planned.topics)
        and all(
            (now := partitions.get(key)) is not None and now.end >= earlier.end
            for key, earlier in planned.partitions.items()
        )
    )


def can_continue(plan: ExportPlan, current: Manifest, *, location: str) -> bool:
    """Whether an export that would add *current* can continue *plan*, of a different one.

    Raises ArchiveOccupiedError if that is of a different flow.
    """
    if plan.content.flow != current.flow:
        raise ArchiveOccupiedError(
            location=location,
            problem=f"an export of flow {plan.content.flow} has not finished there",
            action="name a different folder, or finish that export",
        )
    return not plan.replaced and continues(plan.content, current)


def store_plan(pending: PendingExport, plan: ExportPlan, *, location: str) -> ExportPlan:
    """Stores *plan*, and returns the plan to work on: that of a different export, if it was first.

    Raises ArchiveConflictError or ArchiveOccupiedError if *plan*'s export cannot continue that one.
    """
    first = pending.store(plan)
    if first is plan or can_continue(first, plan.content, location=location):
        return first
    raise ArchiveConflictError(
        location=location,
        problem="a different export has planned there what this one cannot continue",
        action="start this export again when the other one has ended",
    )


def fence_plan(
    log: CommitLog, folder: StorageFolder, before: ArchiveState | None, plan: ExportPlan
) -> ArchiveState:
    """Takes the number of *plan* with a commit that adds nothing, so that no export can commit it; then deletes its files.

    Raises ArchiveConflictError if a different export has committed meanwhile.
    """
    state = log.append(before, replace(plan.content, topics=()))
    discard_committed(folder, state)
    return state


def discard_committed(folder: StorageFolder, state: ArchiveState) -> None:
    """Deletes what is left of plans whose commits exist."""
    for name in folder.entries(PENDING_FOLDER):
        if name.isdecimal() and int(name) <= state.number:
            PendingExport(folder, int(name)).discard(state.manifest)


def _exists(part: ExportRange, exported: ExportedFile, present: Mapping[str, int]) -> bool:
    size_bytes = exported.size_bytes
    return (
        not exported.path
        or present.get(exported.path) == size_bytes
        or present.get(place_of(part, exported)) == size_bytes
    )


def chain_of(part: ExportRange, exported: Iterable[ExportedFile]) -> list[ExportedFile]:
    """Returns the files of *part* that follow each other from its start on.

    Attempts may have ended their files at different offsets: where several begin at one offset, the longest counts.
    """
    longest: dict[int, ExportedFile] = {}
    for candidate in exported:
        if candidate.index == part.index and candidate.end > candidate.start:
            known = longest.get(candidate.start)
            if known is None or candidate.end > known.end:
                longest[candidate.start] = candidate
    chain, start = [], part.start
    while start < part.end and start in longest:
        chain.append(longest[start])
        start = longest[start].end
    return chain


def remaining(plan: ExportPlan, exported: Sequence[ExportedFile]) -> tuple[ExportRange, ...]:
    """Returns the ranges of *plan* without what was exported of them."""
    by_range = _by_range(exported)
    left = []
    for part in plan.ranges:
        chain = chain_of(part, by_range.get(part.index, ()))
        start = chain[-1].end if chain else part.start
        if start < part.end:
            share = (part.end - start) / (part.end - part.start)
            left.append(replace(part, start=start, size_bytes=round(part.size_bytes * share)))
    return tuple(left)


def chosen(plan: ExportPlan, exported: Sequence[ExportedFile]) -> list[tuple[ExportRange, ExportedFile]]:
    """Returns the files of the increment, with their ranges, in the order of the plan. Raises ValueError if one is missing."""
    by_range = _by_range(exported)
    files = []
    for part in plan.ranges:
        chain = chain_of(part, by_range.get(part.index, ()))
        if not chain or chain[-1].end < part.end:
            raise ValueError(f"range {part.index} is not complete")
        files += [(part, done) for done in chain]
    return files


def move_to_places(folder: StorageFolder, files: Sequence[tuple[ExportRange, ExportedFile]]) -> None:
    """Moves files that are not in their places yet: a killed export may have moved some."""
    if not folder.renames:
        return
    present = folder.data()
    for part, exported in files:
        if exported.path and place_of(part, exported) not in present:
            folder.move(exported.path, place_of(part, exported))


def increment_of(
    plan: ExportPlan, files: Sequence[tuple[ExportRange, ExportedFile]], *, finished: str
) -> Manifest:
    """Returns what the plan adds to the archive: its content with the exported files."""
    parts: dict[TopicPartition, list[tuple[ExportRange, ExportedFile]]] = {}
    for part, exported in files:
        parts.setdefault(TopicPartition(part.topic, part.partition), []).append((part, exported))
    topics = []
    for topic in plan.content.topics:
        partitions = []
        for partition in topic.partitions:
            mine = sorted(
                parts.get(TopicPartition(topic.name, partition.number), ()), key=lambda pair: pair[1].start
            )
            gaps = partition.gaps + tuple(gap for _, exported in mine for gap in exported.gaps)
            archived = tuple(_archived(part, exported) for part, exported in mine if exported.tally.records)
            partitions.append(replace(partition, files=archived, gaps=gaps))
        topics.append(replace(topic, partitions=tuple(partitions)))
    return replace(plan.content, topics=tuple(topics), finished=finished)


def _archived(part: ExportRange, exported: ExportedFile) -> ArchivedFile:
    return ArchivedFile(
        path=place_of(part, exported),
        size_bytes=exported.size_bytes,
        start=exported.start,
        end=exported.end,
        codec=exported.codec,
        tally=exported.tally,
        times=exported.times,
    )


def _by_range(exported: Iterable[ExportedFile]) -> Mapping[int, list[ExportedFile]]:
    by_range: dict[int, list[ExportedFile]] = {}
    for done in exported:
        by_range.setdefault(done.index, []).append(done)
    return by_range
