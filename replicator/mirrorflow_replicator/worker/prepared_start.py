"""Hands the arguments of `standalone` to a replicator that was started before they were known.

Python's start and the imports take most of the time until the first record. So `mirrorflow run` starts the replicator first,
and then reads its flow. The replicator receives one JSON line from its stdin, which is a socket, with the file to log to.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

MODE: Final = "prepared"  # the argument with which the replicator waits for `hand_over`
_BYTES: Final = 65_536  # received at once; a line is longer only with many long names


def hand_over(
    connection: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], *, output: int
) -> None:
    """Makes the replicator at the other end continue with *arguments*, with more variables and the file *output*. Raises OSError."""
    line = json.dumps({"arguments": arguments, "environment": environment}).encode() + b"\n"
    sent = socket.send_fds(connection, [line], [output])
    connection.sendall(line[sent:])


def receive() -> list[str] | None:
    """Waits for `hand_over`, sets its variables and output, and returns its arguments; None if the other end was closed."""
    with socket.socket(fileno=os.dup(0)) as connection:
        line, descriptors, _, _ = socket.recv_fds(connection, _BYTES, 1)
        while not line.endswith(b"\n"):
            more = connection.recv(_BYTES)
            if not more:
                return None
            line += more
    received = json.loads(line)
    os.environ.update(received["environment"])
    for stream in (1, 2):
        os.dup2(descriptors[0], stream)
    os.close(descriptors[0])
    arguments: list[str] = received["arguments"]
    return arguments
