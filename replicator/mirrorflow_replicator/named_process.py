"""Names of processes in claims and journals, HOST/PID/RANDOM, and whether the process of a name has ended."""

import os
import secrets
import socket


def new_process_name() -> str:
    """Returns a name of this process that no other one has."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def local_pid(name: str) -> int | None:
    """Returns the process ID in *name* if it is of this host; None otherwise."""
    host, pid, _ = f"{name}//".split("/", 2)
    return int(pid) if host == socket.gethostname() and pid.isdecimal() else None


def has_ended(name: str) -> bool:
    """Returns whether *name* was a process of this host that has ended; False if that is not known."""
    pid = local_pid(name)
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
