"""Describes the machine and the versions with which figures were taken."""

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from tests.harness.kafka.installation import VERSION

CALLS = 1_000_000


def load_average() -> float:
    """Returns the load of the last minute; above a few tenths before a run, other processes distort the figures."""
    return os.getloadavg()[0]


def facts(command: str) -> list[str]:
    """Returns the facts as lines of Markdown."""
    text = f"""\
- taken {_taken()} by `{command}`, load average before {load_average():.2f}
- {_hardware()}; brokers, load and copiers share them
- MirrorFlow {version("mirrorflow")} ({_commit()}), {_python()}; Apache Kafka {VERSION} (brokers, clients and MirrorMaker 2), {_java()}
- one broker on each side, replication factor 1; one task; MM2 with -Xmx1g and the JVM options of its start script, without heartbeats; *tuned* is batch.size 327680, linger.ms 100, max.partition.fetch.bytes 10 MiB, fetch.max.bytes 50 MiB and the source's codec"""
    return text.splitlines()


def operator_facts(command: str) -> list[str]:
    """Returns the facts without Kafka."""
    text = f"""\
- taken {_taken()} by `{command}`, load average before {load_average():.2f}
- {_hardware()}; API server, etcd, controllers, stubs and operator share them
- MirrorFlow {version("mirrorflow")} ({_commit()}), {_python()}, kopf {version("kopf")}, aiohttp {version("aiohttp")}
- *seconds* and *cpu s* are of the operator, its start included; *calls* and *writes* are the API server's own log, Leases are no writes"""
    return text.splitlines()


def console_facts(command: str) -> list[str]:
    """Returns the facts without Kafka and Kubernetes."""
    text = f"""\
- taken {_taken()} by `{command}`, load average before {load_average():.2f}
- {_hardware()}; stubs of connectors and Chromium share them
- MirrorFlow {version("mirrorflow")} ({_commit()}), {_python()}"""
    return text.splitlines()


def node_facts(command: str) -> list[str]:
    """Returns the facts for a node of Kubernetes."""
    text = f"""\
- taken {_taken()} by `{command}`, load average before {load_average():.2f}
- {_hardware()}; node, operator, brokers, driver and executors share them
- MirrorFlow {version("mirrorflow")} ({_commit()}), {_python()}; Apache Kafka {VERSION}, Spark {version("pyspark")}"""
    return text.splitlines()


def _taken() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _hardware() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {_processor()}, {memory_gib:.0f} GiB, Linux {platform.release()}"


def _python() -> str:
    return f"Python {platform.python_version()} ({_call_ns():.0f} ns for a method that counts: how an interpreter was built matters)"


class _Counter:
    def __init__(self) -> None:
        self.total = 0

    def add(self, value: int) -> int:
        self.total += value
        return self.total


def _call_ns() -> float:
    counter = _Counter()
    began = time.process_time()
    for value in range(CALLS):
        counter.add(value)
    return (time.process_time() - began) / CALLS * 1e9


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    return _output("git", "describe", "--always", "--dirty")


def _java() -> str:
    return _output("java", "-version").splitlines()[0]


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent, timeout=10
        )
    except FileNotFoundError:
        return "unknown"
    return (done.stdout or done.stderr).strip() or "unknown"
