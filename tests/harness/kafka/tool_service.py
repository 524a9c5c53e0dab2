"""Load.java and Dump.java in one JVM for as long as we run: its start costs more than what most tests move.

`ask` gives what the program has printed. The JVM is begun by the first question, ended and begun anew after one that was
not answered, and ends with this process.
"""

import atexit
import itertools
import select
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.harness.kafka.installation import VERSION, java_command
from tests.harness.kafka.processes import Child, HarnessError, start

ANSWER_WAIT_S = 600.0  # 2 GB at the 10 MB/s of single-record batches is 200 s
HEAP_MIB = 512
# Not the quick one: a tool that moves gigabytes gains more from the full compiler than a short one loses.
TOOL_JVM = ("-XX:+UseSerialGC",)


class ToolService:
    """One JVM, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._folder: Path | None = None
        self._numbers = itertools.count()

    def ask(self, program: str, arguments: Sequence[str]) -> str:
        """What *program* prints. Raises HarnessError with its stack trace."""
        with self._lock:
            try:
                return self._ask(program, arguments)
            except HarnessError:
                raise
            except BaseException:
                self._end()  # its answer, whenever it comes, would be taken for that of the next question
                raise

    def close(self) -> None:
        """Ends the JVM."""
        with self._lock:
            self._end()

    def _ask(self, program: str, arguments: Sequence[str]) -> str:
        child, folder = self._running()
        file = folder / f"{next(self._numbers)}.out"
        words = [str(file), program, *arguments]
        if any(sign in word for word in words for sign in "\t\n"):
            raise HarnessError(f"A tab or a line's end in an argument of {program}.")
        stdin, stdout = child.process.stdin, child.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\t".join(words).encode() + b"\n")
        stdin.flush()
        ready, _, _ = select.select([stdout], [], [], ANSWER_WAIT_S)
        answer = stdout.readline().strip() if ready else b"silent"
        if answer not in {b"done", b"failed"}:
            tail = child.tail()
            self._end()
            raise HarnessError(f"{program} did not answer ({answer.decode()}).\n{tail}")
        text = file.read_text()
        file.unlink()
        if answer == b"failed":
            raise HarnessError(f"{program} failed ({arguments}):\n{text[-2000:]}")
        return text

    def _running(self) -> tuple[Child, Path]:
        if self._child is not None and self._child.running and self._folder is not None:
            return self._child, self._folder
        self._end()
        self._folder = Path(tempfile.mkdtemp(prefix="mirrorflow-tools-"))
        log = self._folder / "tools.log"
        command = java_command("Tools", log=log, version=VERSION, heap_mib=HEAP_MIB, jvm_options=TOOL_JVM)
        self._child = start("the tools' JVM", command, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._child, self._folder

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            for pipe in (self._child.process.stdin, self._child.process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._child = self._folder = None


def run_alone(program: str, arguments: Sequence[str], *, log: Path) -> str:
    """What *program* prints in a JVM of its own. Raises HarnessError with its stack trace."""
    command = java_command(
        program, *arguments, log=log, version=VERSION, heap_mib=HEAP_MIB, jvm_options=TOOL_JVM
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_WAIT_S, check=False)
    if done.returncode:
        raise HarnessError(f"{program} failed ({arguments}):\n{done.stderr[-2000:]}")
    return done.stdout


SERVICE = ToolService()
atexit.register(SERVICE.close)
