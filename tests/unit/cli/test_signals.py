"""Signals that arrive while `mirrorflow` imports the modules of a command."""

import signal
import subprocess
import sys

import pytest

IMPORTING = """
import signal, sys
from mirrorflow_cli import __main__
from mirrorflow_cli.commands import command_parser

class Imported:
    def __del__(self):
        signal.raise_signal(int(sys.argv[2]))

def parser(*given):
    Imported()
    return command_parser(*given)

__main__.command_parser = parser
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background processes ignore it
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_whose_imports_ignore_exceptions(number: signal.Signals, status: int) -> None:
    """As a finalizer or a callback of a weak reference does. In a container, the kernel ignores SIGTERM that is not handled."""
    command = [sys.executable, "-c", IMPORTING, "completion", str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert (status, "", "") == (ended.returncode, ended.stdout, ended.stderr)


JOB = """
import signal, sys, types
process = types.ModuleType("mirrorflow_cli.switchover_process")
process.main = lambda: signal.raise_signal(signal.SIGTERM)
sys.modules[process.__name__] = process
import mirrorflow_cli
mirrorflow_cli.switchover_process = process
from mirrorflow_cli import switchover_job
sys.exit(switchover_job.main())
"""


def test_sigterm_ends_the_job_of_a_switchover_that_has_not_begun() -> None:
    """As while it imports its modules: the kernel ignores a signal that process 1 of a container does not handle."""
    ended = subprocess.run(
        [sys.executable, "-c", JOB], capture_output=True, text=True, check=False, timeout=300
    )

    assert (143, "", "") == (ended.returncode, ended.stdout, ended.stderr)


def test_the_job_of_a_switchover_imports_little_before_it_handles_sigterm() -> None:
    program = "import sys; import mirrorflow_cli.switchover_job; sys.exit('asyncio' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", program], check=False, timeout=300).returncode
