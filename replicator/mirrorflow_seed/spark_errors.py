"""Says why Spark or one of its jobs has failed, as one sentence, and holds back what a starting Spark prints for that."""

import contextlib
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from mirrorflow_seed.errors import JobFailedError, JobSettingError, SeedError, SparkMissingError

CAUSE_CHARACTERS_MAX: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"
STDERR: Final = 2  # the file descriptor
PYTHON_KEY: Final = "spark.pyspark.python"
# A wrong setting, in the words of Spark's errors; anything else failed after the start.
_SETTING_PROBLEMS: Final = re.compile(
    r"Could not parse Master URL|IllegalArgumentException|NumberFormatException|SparkIllegalArgument"
    r"|must be (?:at least|set|positive)|Cannot run program|URISyntaxException|INVALID_CONNECT_URL"
    r"|JAVA_GATEWAY_EXITED"
)
# Errors of a job that another Python of its executors solves; group 1 is the program or module.
_PYTHON_NOT_FOUND: Final = re.compile(r'Cannot run program "([^"]+)"')
_MODULE_NOT_FOUND: Final = re.compile(r"No module named '([\w.]+)'")
_PYTHON_VERSION: Final = re.compile(r"PYTHON_VERSION_MISMATCH")
# The JVM prints this for a module that Spark loads, and has no switch for it.
JAVA_NOTICE: Final = "WARNING: Using incubator modules"
_JVM_ENDED: Final = "JAVA_GATEWAY_EXITED"
_STACK_LINE: Final = re.compile(r"\s+(?:at .+\(.*\)|\.\.\. \d+ (?:more|common frames omitted))")
_MAIN_EXCEPTION: Final = re.compile(r'Exception in thread "main" (?:[\w.$]+: )?(.+)')
# Until then, what Spark prints is held back: if the start fails, its one sentence is enough. A start may take minutes, as where
# YARN has no resources, and then what Spark prints is shown.
QUIET_START_S: Final = 20.0
_PRINTED_MAX: Final = 1_000  # lines among which the cause of a failed start is looked for
_LAST_LINES_S: Final = 2.0  # the last lines of a JVM that has ended arrive at once


def start_error(error: BaseException, printed: Sequence[str] = ()) -> SeedError:
    """Returns the error for a session that cannot be started, with its cause as one sentence.

    *printed* is what Spark has printed until then: the only cause that is known if its JVM has ended.
    """
    text = f"{type(error).__name__} {error}"
    if "PACKAGE_NOT_INSTALLED" in text:
        return SparkMissingError(
            f"Spark Connect needs more packages: {cause_of(error)} Install them with: pip install 'pyspark[connect]'."
        )
    cause = (_printed_cause(printed) if _JVM_ENDED in text else "") or cause_of(error)
    if _SETTING_PROBLEMS.search(text):
        return JobSettingError(key="Spark", problem=cause.rstrip("."), action="correct that setting")
    return JobFailedError(f"Spark cannot be started: {cause}")


def job_error(error: BaseException, failed: str) -> JobSettingError | JobFailedError:
    """Returns the error for a job that Spark has ended; *failed* begins its sentence, such as `The export has failed`."""
    text = str(error)
    problem = ""
    if match := _PYTHON_NOT_FOUND.search(text):
        problem = f"Spark cannot run {match[1]}"
    elif match := _MODULE_NOT_FOUND.search(text):
        problem = f"the Python of Spark's executors has no module {match[1]}"
    elif _PYTHON_VERSION.search(text):
        problem = (
            f"the Python of Spark's executors has another version than the driver's {sys.version.split()[0]}"
        )
    if problem:
        return JobSettingError(
            key=PYTHON_KEY,
            problem=problem,
            action="set it, or PYSPARK_PYTHON, to a Python of the executors that has MirrorFlow with the extra seed",
        )
    return JobFailedError(f"{failed}: {cause_of(error)}")


class _StartLines:
    """Passes lines of a starting Spark on to file descriptor *out*, at first held back; without notices and stacks."""

    def __init__(self, out: int) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._held: list[bytes] | None = []
        self._is_starting = True
        self.printed: deque[str] = deque(maxlen=_PRINTED_MAX)

    def add(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text.startswith(JAVA_NOTICE):
            return
        with self._lock:
            if self._is_starting:
                self.printed.append(text)
                if _STACK_LINE.match(text):
                    return
            if self._held is None:
                os.write(self._out, line)
            else:
                self._held.append(line)

    def release(self, *, has_started: bool = False) -> None:
        """Passes on what is held back, and then each line as it comes; once Spark has started, also stacks."""
        with self._lock:
            self._is_starting = not has_started
            if self._held is not None:
                os.write(self._out, b"".join(self._held))
                self._held = None


@contextlib.contextmanager
def quiet_start() -> Iterator[Sequence[str]]:
    """Holds back what Spark prints to stderr while it is started inside the block, and yields those lines.

    They are passed on after the block or after QUIET_START_S, and dropped if the block fails before. A JVM that is started
    inside keeps writing through this process.
    """
    reading, writing = os.pipe()
    stderr = os.dup(STDERR)
    lines = _StartLines(os.dup(stderr))
    timer = threading.Timer(QUIET_START_S, lines.release)
    os.dup2(writing, STDERR)
    os.close(writing)
    thread = threading.Thread(target=_pass_on, args=(reading, lines), daemon=True)
    thread.start()
    timer.start()
    try:
        yield lines.printed
    except BaseException:
        os.dup2(stderr, STDERR)  # the last writer of this process, so that the thread ends with the JVM
        thread.join(_LAST_LINES_S)
        raise
    finally:
        timer.cancel()
        os.dup2(stderr, STDERR)
        os.close(stderr)
    lines.release(has_started=True)


def _pass_on(reading: int, lines: _StartLines) -> None:
    with open(reading, "rb") as stream:
        for line in stream:
            lines.add(line)


def _printed_cause(lines: Sequence[str]) -> str:
    """Returns the cause among the lines of a JVM that has ended; "" without one."""
    for line in lines:
        if match := _MAIN_EXCEPTION.match(line):
            return match[1][:CAUSE_CHARACTERS_MAX]
    messages = [
        line for line in lines if line and not _STACK_LINE.match(line) and not line.startswith("WARNING")
    ]
    return messages[0][:CAUSE_CHARACTERS_MAX] if messages else ""


def cause_of(error: BaseException) -> str:
    """Returns one sentence for a Spark error: our own error in a task, else the last of Python or Java."""
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The last line is the innermost cause; outer errors repeat it.
    for line in reversed(lines):
        if line.startswith("mirrorflow_") and ": " in line:
            return line.partition(": ")[2][:CAUSE_CHARACTERS_MAX]
    if _TRACEBACK in text:
        last = text.rpartition(_TRACEBACK)[2].splitlines()
        raised = next((line for line in last[1:] if line and not line[0].isspace()), "")
        if raised:
            return raised[:CAUSE_CHARACTERS_MAX]
    for mark in ("Caused by: ", ": "):
        for line in reversed(lines):
            if line.startswith(mark):
                return line.removeprefix(mark)[:CAUSE_CHARACTERS_MAX]
    return lines[0][:CAUSE_CHARACTERS_MAX] if lines else type(error).__name__
