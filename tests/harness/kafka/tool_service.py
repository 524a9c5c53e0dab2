"""Runs Load.java and Dump.java in one JVM, because the start of a JVM costs more than the work of most tests.

`ask` returns the program's output. The JVM starts with the first request, restarts after a request without a reply, and
ends with this process.
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

REPLY_WAIT_S = 600.0  # 2 GB at the 10 MB/s of single-record batches is 200 s
HEAP_MIB = 512
# The quick options are not used, because a tool that moves gigabytes gains more from the full compiler than a short one
# loses.
TOOL_JVM = ("-XX:+UseSerialGC",)


class ToolService:
    """One JVM that serves one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._folder: Path | None = None
        self._numbers = itertools.count()

    def ask(self, program: str, arguments: Sequence[str]) -> str:
        """Runs *program* and returns its output. Raises HarnessError with its stack trace."""
        with self._lock:
            try:
                return self._ask(program, arguments)
            except HarnessError:
                raise
            except BaseException:
                self._end()  # a late reply would be attributed to the next request
                raise

    def close(self) -> None:
        """Ends the JVM."""
        with self._lock:
            self._end()

    def _ask(self, program: str, arguments: Sequence[str]) -> str:
        child, folder = self._running()
        file = folder / f"{next(self._numbers)}.out"
        request = [str(file), program, *arguments]
        if any(character in part for part in request for character in "\t\n"):
            raise HarnessError(f"A tab or a newline in an argument of {program}.")
        stdin, stdout = child.process.stdin, child.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\t".join(request).encode() + b"\n")
        stdin.flush()
        ready, _, _ = select.select([stdout], [], [], REPLY_WAIT_S)
        reply = stdout.readline().strip() if ready else b"silent"
        if reply not in {b"done", b"failed"}:
            tail = child.tail()
            self._end()
            raise HarnessError(f"{program} did not reply ({reply.decode()}).\n{tail}")
        text = file.read_text()
        file.unlink()
        if reply == b"failed":
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
    """Runs *program* in its own JVM and returns its output. Raises HarnessError with its stack trace."""
    command = java_command(
        program, *arguments, log=log, version=VERSION, heap_mib=HEAP_MIB, jvm_options=TOOL_JVM
    )
    process = subprocess.run(command, capture_output=True, text=True, timeout=REPLY_WAIT_S, check=False)
    if process.returncode:
        raise HarnessError(f"{program} failed ({arguments}):\n{process.stderr[-2000:]}")
    return process.stdout


SERVICE = ToolService()
atexit.register(SERVICE.close)
