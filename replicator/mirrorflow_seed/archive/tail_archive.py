"""Writes a diverged tail to an archive of its own, without Spark: a tail is short, and its partitions are written one by one.

The plan, the files and the commit are those of an export (`export_driver`), so an interrupted one is continued, and a restore
or `mirrorflow verify --archive` reads the archive as any other. It has the committed records only: its isolation level is
read_committed.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_replicator.switchover.diverged_tail import CountedTail, TailSurvey, require_decided
from mirrorflow_seed.archive.commit_log import ArchiveState, CommitLog, read_archive
from mirrorflow_seed.archive.export_checks import require_empty_or_archive, require_fit, require_own_files
from mirrorflow_seed.archive.export_plan import (
    FILE_BYTES,
    FILE_GROWTH_MAX,
    Increment,
    SourceSnapshot,
    adds_nothing,
    plan_increment,
    plan_ranges,
    read_source,
)
from mirrorflow_seed.archive.export_task import ExportTarget, export_range
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.archive.pending_export import (
    ExportPlan,
    PendingExport,
    can_continue,
    chosen,
    continues,
    discard_committed,
    fence_plan,
    increment_of,
    move_to_places,
    remaining,
    store_plan,
)
from mirrorflow_seed.errors import ArchiveUnfitError
from mirrorflow_seed.storage_folder import TEMPORARY_FOLDER, StorageFolder
from mirrorflow_seed.verify.range_reader import OffsetRange


def archive_tails(
    settings: SourceSettings,
    survey: TailSurvey,
    address: str,
    *,
    cluster_id: str,
    configs: Mapping[str, tuple[ConfigEntry, ...]] | None = None,
) -> Manifest:
    """Appends the tails of *survey* to the archive at *address*; returns its content. What it has already is not read again.

    *configs*: the settings of the topics on the old side. Raises SeedError, MirrorFlowError. It can be called again after each of
    them, and after a crash; nothing is committed then. Not inside of an event loop: it runs its own.
    """
    require_decided(survey)
    committed = replace(settings, read_committed=True)
    folder = StorageFolder(address)
    require_empty_or_archive(folder)
    folder.prepare()
    log = CommitLog(folder)
    before = log.read()
    if before:
        require_fit(before.manifest, committed, address)
        _require_own_ranges(before.manifest, survey, address)
        discard_committed(folder, before)
    snapshot = SourceSnapshot(
        cluster_id=cluster_id,
        topic_ids={tail.partition.topic: tail.topic_id for tail in survey.filled},
        configs=configs,
        extents={tail.partition: OffsetRange(tail.tail.start, tail.tail.end) for tail in survey.filled},
    )
    increment = plan_increment(
        committed,
        snapshot,
        before.manifest if before else None,
        archive_id=before.manifest.archive_id if before else secrets.token_hex(8),
        started=_now(),
    )
    if increment.unfit:
        raise ArchiveUnfitError(
            location=address,
            problem="; ".join(increment.unfit),
            action="keep the tail in a new folder",
        )
    if before is None or not adds_nothing(increment.content, before.manifest):
        _export(committed, folder, log, before, increment)
    return _required(read_archive(folder), survey, address)


def require_archived(survey: TailSurvey, address: str) -> Manifest:
    """Returns the content of the archive at *address*. Raises ArchiveUnfitError unless it has the tails of *survey*, SeedError."""
    require_decided(survey)
    return _required(read_archive(StorageFolder(address)), survey, address)


def _export(
    settings: SourceSettings,
    folder: StorageFolder,
    log: CommitLog,
    before: ArchiveState | None,
    increment: Increment,
) -> None:
    number = before.number + 1 if before else 1
    pending = PendingExport(folder, number)
    plan = pending.read()
    if plan is not None and not can_continue(plan, increment.content, location=folder.address):
        before = fence_plan(log, folder, before, plan)
        number, plan = before.number + 1, None
        pending = PendingExport(folder, number)
    plan = plan or store_plan(
        pending,
        ExportPlan(
            plan_id=secrets.token_hex(8),
            number=number,
            content=increment.content,
            ranges=plan_ranges(
                {key: extent for key, extent in increment.extents.items() if extent.end > extent.start},
                {},
                file_bytes=FILE_BYTES,
            ),
        ),
        location=folder.address,
    )
    present = {**folder.data(), **folder.files(f"{TEMPORARY_FOLDER}/{plan.plan_id}")}
    exported = pending.exported(plan, present)
    target = ExportTarget(
        address=folder.address,
        archive_id=plan.content.archive_id,
        plan_id=plan.plan_id,
        results=plan.results,
        file_bytes_max=FILE_BYTES * FILE_GROWTH_MAX,
    )
    for part in remaining(plan, exported):
        exported += export_range(settings, part, folder, target, None)
    if not _is_still(settings, plan, before):
        fence_plan(log, folder, before, plan)
        raise ArchiveUnfitError(
            location=folder.address,
            problem="topics were deleted, created again or truncated on the source while their tails were read",
            action="start the command again; none of these records was archived",
        )
    files = chosen(plan, exported)
    move_to_places(folder, files)
    content = increment_of(plan, files, finished=_now())
    require_own_files(folder.data(), content.files, location=folder.address)
    discard_committed(folder, log.append(before, content))


def _is_still(settings: SourceSettings, plan: ExportPlan, before: ArchiveState | None) -> bool:
    """Returns whether the source has the planned topics after they were read: by name, so also one that was created again.

    Raises MirrorFlowError, SeedError.
    """
    current = plan_increment(
        settings,
        asyncio.run(read_source(settings)),
        before.manifest if before else None,
        archive_id=plan.content.archive_id,
        started=_now(),
    )
    return continues(plan.content, current.content)


def _require_own_ranges(archived: Manifest, survey: TailSurvey, address: str) -> None:
    """Raises ArchiveUnfitError if the archive has records from before the tail: it is one of the whole flow."""
    cuts = {tail.partition: tail.tail.start - tail.tail.gone for tail in survey.tails}
    for key, partition in archived.partitions.items():
        if partition.start < cuts.get(key, 0):
            raise ArchiveUnfitError(
                location=address,
                problem=f"it has offsets of {key} from {partition.start} on, and the tail begins at {cuts[key]}",
                action="keep the tail in a folder of its own",
            )


def _required(archived: Manifest, survey: TailSurvey, address: str) -> Manifest:
    """Returns *archived*. Raises ArchiveUnfitError unless it has each record of *survey*."""
    for tail in survey.filled:
        if (records := _records_of(archived, tail)) < tail.count.records:
            raise ArchiveUnfitError(
                location=address,
                problem=f"it has {records} records of the tail of {tail.partition}, which has {tail.count.records}",
                action="keep the tail again: records may have been deleted meanwhile by retention",
            )
    return archived


def _records_of(archived: Manifest, tail: CountedTail) -> int:
    partition = archived.partitions.get(tail.partition)
    if partition is None or partition.end < tail.tail.end:
        return 0
    return partition.records


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
