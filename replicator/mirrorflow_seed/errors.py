"""Errors of the Spark jobs, with the exit status of each.

    SeedError
    ├── JobSettingError      a job property is wrong; nothing was started (status 2)
    ├── SparkMissingError    pyspark or Java is missing (status 2)
    ├── ForeignRecordsError  a target topic holds records that this flow has not written (status 4, as all without another)
    ├── JobFailedError       the job started and failed
    │   ├── NothingSelectedError   the flow selects no topic (status 5)
    │   ├── IncompleteExportError  a topic of the archive cannot be continued; the others were exported (status 1)
    │   ├── QuarantineError  a quarantine topic cannot be used
    │   ├── FlowLostError    another job has taken the flow
    │   └── StalledError     its tasks make no progress
    ├── FileSystemError      a folder, or its file system, cannot be used
    ├── IcebergTableError    the Iceberg table of an archive cannot be written
    └── ArchiveError         an archive cannot be written or read
        ├── ArchiveOccupiedError    the folder of a new archive is not empty
        ├── ArchiveConflictError    a different export has committed to it
        ├── ArchiveIncompleteError  it has no commit
        ├── ArchiveDamagedError     its files differ from its commits
        └── ArchiveUnfitError       it is intact, but this flow cannot use it

Errors of the replicator have their own tree (`mirrorflow_core.errors`); `__main__` maps both to a status.
"""

from typing import ClassVar

EXIT_DONE = 0
# It ran to its end, and what it compared or copied is not the same on both sides; as of diff.
EXIT_DIFFERENT = 1
EXIT_USAGE = 2
EXIT_STOPPED = 3  # gracefully, by a signal; the next start continues
EXIT_FAILED = 4  # it could not run, or failed before its end
EXIT_NOTHING_SELECTED = 5
EXIT_PLANNED = 6  # it has shown what it would write, and has written nothing


class SeedError(Exception):
    """The base class of all errors of the jobs; the message is a sentence that says what to do."""

    status: ClassVar[int] = EXIT_FAILED


class JobSettingError(SeedError):
    """The value of *key* in job.properties is invalid."""

    status = EXIT_USAGE

    def __init__(self, *, key: str, problem: str, action: str) -> None:
        self.key = key
        super().__init__(f"{key}: {problem}; {action}.")


class SparkMissingError(SeedError):
    """pyspark or Java is missing."""

    status = EXIT_USAGE


class ForeignRecordsError(SeedError):
    """A target topic holds records that this flow has not written."""

    def __init__(self, *, topics: tuple[str, ...], more: int) -> None:
        self.topics = topics
        named = ", ".join(topics) + (f" and {more} more" if more else "")
        super().__init__(
            f"These target topics already hold records that this flow has not written: {named};"
            " empty them, or accept them with foreign.records=accept (--foreign-records accept)."
        )


class JobFailedError(SeedError):
    """The job started and failed."""


class NothingSelectedError(JobFailedError):
    """The flow selects no topic; the message says why, and which topic may be meant."""

    status = EXIT_NOTHING_SELECTED


class IncompleteExportError(JobFailedError):
    """Topics of an archive cannot be continued; the others were exported."""

    status = EXIT_DIFFERENT


class QuarantineError(JobFailedError):
    """The quarantine topic *topic* cannot be used."""

    def __init__(self, *, topic: str, problem: str, action: str) -> None:
        self.topic = topic
        super().__init__(f"{topic}: {problem}; {action}.")


class FlowLostError(JobFailedError):
    """Another job has taken over the flow."""

    reason: ClassVar[str] = "FlowTaken"

    def __init__(self) -> None:
        super().__init__("Another job took over the flow. Rerun this job after it ends; it resumes.")


class StalledError(JobFailedError):
    """The job made no progress for *duration*; `reason` lists the error reasons of its tasks and names no topic."""

    def __init__(self, *, duration: str, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        self.reason = f"No progress {duration}: {', '.join(reasons) or 'no task reported an error'}"
        super().__init__(f"{self.reason}. The reasons are above; the next start resumes.")


class _FolderError(SeedError):
    """An error about the folder or table *location*: *problem* says what is wrong, *action* what to do."""

    def __init__(self, *, location: str, problem: str, action: str = "") -> None:
        self.location = location
        self.problem = problem
        super().__init__(f"{location}: {problem}" + (f"; {action}." if action else "."))


class FileSystemError(_FolderError):
    """A folder or its file system cannot be used."""


class IcebergTableError(_FolderError):
    """The Iceberg table of an archive cannot be written; *location* is its name."""


class ArchiveError(_FolderError):
    """An archive cannot be written or read; *location* is its folder."""


class ArchiveOccupiedError(ArchiveError):
    """The folder of a new archive is not empty."""


class ArchiveConflictError(ArchiveError):
    """A different export has committed to the archive since this one began."""


class ArchiveIncompleteError(ArchiveError):
    """The folder has no commit: an export did not finish, or the folder is no archive."""


class ArchiveDamagedError(ArchiveError):
    """The files of an archive differ from its commits."""


class ArchiveUnfitError(ArchiveError):
    """The archive is intact, but this flow cannot use it."""
