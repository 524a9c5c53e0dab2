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
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_whose_imports_ignore_exceptions(number: signal.Signals, status: int) -> None:
    """As a finalizer or a callback of a weak reference does. In a container, the kernel ignores SIGTERM that is not handled."""
    command = [sys.executable, "-c", IMPORTING, "completion", str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert (status, "", "") == (ended.returncode, ended.stdout, ended.stderr)
