"""What the command says when it cannot go on, and the exit status it says it with.

    CommandError
    ├── UsageError     the arguments or the file are wrong; nothing was started (status 2)
    └── FailedError    it was started and could not be done (status 1)

The errors of the replicator and of the resource's types keep their own trees; `__main__` maps all of them to these two
statuses.
"""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SIGNAL_BASE = 128  # as a shell counts: 130 after Ctrl-C, 143 after SIGTERM


class CommandError(Exception):
    """The root: one sentence, or one a line."""

    status = EXIT_FAILED


class UsageError(CommandError):
    """The arguments or the file are wrong; nothing was started."""

    status = EXIT_USAGE


class FailedError(CommandError):
    """It was started and could not be done."""
