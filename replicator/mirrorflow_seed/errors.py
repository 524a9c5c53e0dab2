"""What a job says when it cannot go on, and the exit status it says it with.

    SeedError
    ├── JobSettingError      a job property is wrong; nothing was started (status 2)
    ├── SparkMissingError    pyspark or Java is not there (status 2)
    ├── ForeignRecordsError  a target topic holds records that are not this flow's (status 1)
    ├── JobFailedError       the job was started and could not be done (status 1)
    │   └── StalledError     its tasks do not get on
    ├── LocationError        a folder, or its file system, cannot be used (status 1)
    └── ArchiveError         an archive cannot be written or read (status 1)
        ├── ArchiveOccupiedError    there is something where it is to be written
        ├── ArchiveIncompleteError  it has no manifest
        ├── ArchiveDamagedError     its files are not those of its manifest
        └── ArchiveUnfitError       it is not what this flow can go on from

Errors of the replicator keep their own tree; `__main__` maps both to a status.
"""

from typing import ClassVar

EXIT_DONE = 0
EXIT_FAILED = 1  # or, of a verification, differences
EXIT_USAGE = 2
EXIT_STOPPED = 3  # by a signal, in order; the next start goes on


class SeedError(Exception):
    """The root: one sentence that says what to do."""

    status: ClassVar[int] = EXIT_FAILED


class JobSettingError(SeedError):
    """The value of *key* in job.properties cannot be understood."""

    status = EXIT_USAGE

    def __init__(self, *, key: str, problem: str, action: str) -> None:
        self.key = key
        super().__init__(f"{key}: {problem}; {action}.")


class SparkMissingError(SeedError):
    """pyspark or Java is not there."""

    status = EXIT_USAGE


class ForeignRecordsError(SeedError):
    """A target topic holds records that are not this flow's."""

    def __init__(self, *, topics: tuple[str, ...], more: int) -> None:
        self.topics = topics
        named = ", ".join(topics) + (f" and {more} more" if more else "")
        super().__init__(
            f"These target topics already hold records that this flow has not written: {named};"
            " empty them, or accept them with foreign.records=accept (--foreign-records accept)."
        )


class JobFailedError(SeedError):
    """The job was started and could not be done."""


class StalledError(JobFailedError):
    """Nothing has moved *how* long; `reason` names what holds tasks up, and no topic."""

    def __init__(self, *, how: str, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        self.reason = f"Nothing has moved {how}: {', '.join(reasons) or 'no task said why'}"
        super().__init__(f"{self.reason}. The sentences are above; the next start goes on.")


class _OfFolderError(SeedError):
    """*problem* is half a sentence on *location*, *action* what to do about it."""

    def __init__(self, *, location: str, problem: str, action: str = "") -> None:
        self.location = location
        self.problem = problem
        super().__init__(f"{location}: {problem}" + (f"; {action}." if action else "."))


class LocationError(_OfFolderError):
    """A folder, or the file system that it is in, cannot be used."""


class ArchiveError(_OfFolderError):
    """An archive cannot be written or read; *location* is its folder."""


class ArchiveOccupiedError(ArchiveError):
    """There is something where an archive is to be written."""


class ArchiveIncompleteError(ArchiveError):
    """There is no manifest: the export was not finished, or there never was one."""


class ArchiveDamagedError(ArchiveError):
    """Its files are not those that its manifest names."""


class ArchiveUnfitError(ArchiveError):
    """It is whole, but not what this flow can go on from."""
