"""Checks that an export fits the archive in its folder, and that what it commits is there."""

from collections.abc import Mapping, Sequence

from mirrorflow_core.settings import SourceSettings
from mirrorflow_seed.archive.commit_log import COMMITS_FOLDER, PENDING_FOLDER
from mirrorflow_seed.archive.export_plan import isolation_of
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest
from mirrorflow_seed.errors import ArchiveError, ArchiveOccupiedError, ArchiveUnfitError
from mirrorflow_seed.storage_folder import StorageFolder


def require_empty_or_archive(folder: StorageFolder) -> None:
    """Raises ArchiveOccupiedError if the folder holds anything but an archive, or the begin of one."""
    present = folder.entries()
    if present and not present & {COMMITS_FOLDER, PENDING_FOLDER}:
        raise ArchiveOccupiedError(
            location=folder.address,
            problem="it is not empty, and holds no archive",
            action="name a different folder",
        )


def require_fit(archived: Manifest, settings: SourceSettings, location: str) -> None:
    """Raises ArchiveUnfitError unless the flow can continue the archive."""
    isolation = isolation_of(settings)
    if archived.flow != settings.flow:
        problem = f"it is of flow {archived.flow}, and this is flow {settings.flow}"
    elif archived.isolation != isolation:
        problem = f"it was read with {archived.isolation}, and this flow reads with {isolation}"
    else:
        return
    raise ArchiveUnfitError(location=location, problem=problem, action="export into a new folder")


def require_own_files(present: Mapping[str, int], files: Sequence[ArchivedFile], *, location: str) -> None:
    """Raises ArchiveError unless all *files* are among those *present*, which maps paths to sizes in bytes."""
    missing = [file.path for file in files if present.get(file.path) != file.size_bytes]
    if missing:
        raise ArchiveError(
            location=location,
            problem=f"{len(missing)} files are missing, although their tasks succeeded, such as {missing[0]}",
            action="name a folder that driver and executors share, and start the export again",
        )
