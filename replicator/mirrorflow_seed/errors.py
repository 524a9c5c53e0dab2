"""What a job says when it cannot go on, and the exit status it says it with.

    SeedError
    ├── JobSettingError      a job property is wrong; nothing was started (status 2)
    ├── SparkMissingError    pyspark or Java is not there (status 2)
    ├── ForeignRecordsError  a target topic holds records that are not this flow's (status 1)
    └── JobFailedError       the job was started and could not be done (status 1)

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
