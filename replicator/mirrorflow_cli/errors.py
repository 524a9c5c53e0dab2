"""Defines the errors of the command, each with its exit status.

    CommandError
    ├── UsageError     the arguments or the file are invalid; nothing was started (status 2)
    └── FailedError    the command was started and failed (status 1; those of mirrorflow_seed.errors for Spark jobs)

The replicator and the resource's types have their own error trees; `__main__` maps all of them to these two
statuses.
"""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SIGNAL_BASE = 128  # as in a shell: 130 after Ctrl-C, 143 after SIGTERM


class CommandError(Exception):
    """The base class; its text is one sentence, or one per line."""

    status = EXIT_FAILED


class UsageError(CommandError):
    """The arguments or the file are invalid; nothing was started."""

    status = EXIT_USAGE


class FailedError(CommandError):
    """The command was started and failed."""

    def __init__(self, message: str, *, status: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.status = status
