"""Runs the `mirrorflow` command: finds the subcommand's module and turns errors into an exit status.

Exit status: 0 done; 1 the command failed, or `check` found problems; 2 the arguments or the file are invalid
and nothing was started; 130 and 143 stopped by Ctrl-C or SIGTERM. Errors are printed as sentences on stderr,
or as `problems` of the JSON object, never as a traceback.
"""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

from mirrorflow_cli.commands import COMMANDS, command_parser
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_SIGNAL_BASE, EXIT_USAGE, CommandError
from mirrorflow_core.errors import MirrorFlowError, SettingError
from mirrorflow_replicator.process import importing

STDERR = 2  # the file descriptor


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with *arguments* (default: those of the process) and returns its exit status."""
    # Otherwise pydantic's first model searches all installed packages for plug-ins, which takes 6 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    given = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it leaves that to this process
        # The kernel ignores a signal that process 1 of a container does not handle.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_SIGNAL_BASE + signal.SIGTERM))
        _open_streams()
    command = next((argument for argument in given if argument in COMMANDS), "")
    try:
        status = _execute(command, given, is_own_process=arguments is None)
        if sys.stdout is not None:
            with contextlib.suppress(BrokenPipeError):  # it has no reader any more, and the command has ended
                sys.stdout.flush()  # now, so that a full disk changes the exit status
    except BrokenPipeError:
        # The reader of stdout has closed it (head, less). If this ends a switchover, applications may be unable to write.
        return EXIT_DONE if command != "switchover" and _is_unread(sys.stdout) else EXIT_FAILED
    except OSError as error:  # of stdout, where a disk is full
        _report(_sentence(error))
        return EXIT_FAILED
    else:
        return status
    finally:
        _discard_what_is_unread()


def _execute(command: str, given: Sequence[str], *, is_own_process: bool) -> int:
    """Runs *command*, which is one of the arguments *given*. Raises OSError if stdout cannot be written."""
    report: Callable[[str], None] = _report
    try:
        with importing() if is_own_process else contextlib.nullcontext():
            # Where the command comes first, no help or error lists the others.
            parser = command_parser({command}, [command] if given[:1] == [command] else COMMANDS.keys())
        parser.set_defaults(is_own_process=is_own_process)
        parsed, rest = parser.parse_known_args(given)
        if rest and not ("add_files" in parsed and parsed.add_files(parsed, rest)):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        if "report" in parsed:
            report = partial(parsed.report, parsed)
        return int(parsed.execute(parsed))
    except CommandError as error:
        report(str(error))
        return error.status
    except SettingError as error:
        report(str(error))
        return EXIT_USAGE
    except MirrorFlowError as error:
        report(str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        raise
    except OSError as error:
        report(_sentence(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_SIGNAL_BASE + 2
    except ModuleNotFoundError as error:
        if (error.name or "mirrorflow").startswith("mirrorflow"):
            raise
        extras = "cli,console" if "ui" in given else "cli"
        report(
            f"The Python package {error.name} is not installed; in MirrorFlow's folder: pip install '.[{extras}]'."
        )
        return EXIT_USAGE


def _open_streams() -> None:
    """Opens the null device for each standard stream that this process was started without, so that no other file takes its place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _sentence(error: OSError) -> str:
    if error.filename is None:
        return f"The command failed: {error.strerror or error}."
    return f"{error.filename} cannot be used: {error.strerror}."


def _report(sentences: str) -> None:
    with contextlib.suppress(OSError):  # the exit status is left
        print(sentences, file=sys.stderr)


def _is_unread(stream: TextIO) -> bool:
    """Returns whether *stream* is a pipe whose reader has ended."""
    polled = select.poll()
    try:
        polled.register(stream, 0)  # errors and the end of the reader are reported always
    except (OSError, ValueError):
        return False  # it has no file descriptor
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in polled.poll(0))


def _discard_what_is_unread() -> None:
    """Empties the streams that cannot be written. Otherwise Python reports an error at exit, and changes the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # the process was started without it
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
