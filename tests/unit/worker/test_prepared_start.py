"""A replicator process that starts before its arguments are known, as for `mirrorflow run`."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrorflow_replicator.worker import prepared_start

WAIT_S = 300.0


@contextmanager
def prepared() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    command_socket, replicator_socket = socket.socketpair()
    with replicator_socket:
        command = [sys.executable, "-m", "mirrorflow_replicator", prepared_start.MODE]
        process = subprocess.Popen(
            command, stdin=replicator_socket.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    try:
        with command_socket:
            yield process, command_socket
    finally:
        process.kill()
        process.wait()


def test_a_prepared_process_ends_when_its_command_ends():
    with prepared() as (process, connection):
        connection.close()

        assert 0 == process.wait(WAIT_S)


def test_a_prepared_process_uses_the_arguments_and_log_file_it_receives(tmp_path: Path):
    """A line of several megabytes arrives completely. The first file is the worker's, and is read last."""
    log = tmp_path / "log"
    with prepared() as (process, connection), log.open("wb") as output:
        files = [str(tmp_path / f"{number}-is-missing.properties") for number in range(30_000)]
        prepared_start.hand_over(connection, ["standalone", *files], {}, output=output.fileno())

        assert 2 == process.wait(WAIT_S)
    assert f"{files[1]} cannot be read: No such file or directory." in log.read_text()


def test_variables_are_set_before_the_arguments_are_used():
    code = (
        "import os; from mirrorflow_replicator.worker.prepared_start import receive\n"
        "print(receive(), os.environ['MIRRORFLOW_HTTP_FILE'], flush=True)"
    )
    command_socket, replicator_socket = socket.socketpair()
    reading, writing = os.pipe()
    with command_socket, replicator_socket, os.fdopen(reading) as output:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=replicator_socket.fileno())
        prepared_start.hand_over(
            command_socket, ["standalone"], {"MIRRORFLOW_HTTP_FILE": "/here"}, output=writing
        )
        os.close(writing)

        assert "['standalone'] /here\n" == output.read()
        assert 0 == process.wait(WAIT_S)
