"""What a start imports before the first record: importing takes most of its time.

`mirrorflow run` first starts the replicator and then reads its flow, so that both import at the same time. What is not needed
until the first record is imported when it is used.
"""

import subprocess
import sys

import pytest

WAIT_S = 300.0
NEVER = (
    "confluent_kafka",
    "kopf",
    "kubernetes",
    "mirrorflow_seed",
    "pyspark",
    "rich",
)
OF_THE_RESOURCE = ("mirrorflow_cli.flow_arguments", "mirrorflow_operator", "pydantic", "yaml")
OF_BROKERS = ("asyncio", "kafka", "mirrorflow_kafka", "ssl")
OF_THE_VERSION = "importlib.metadata"  # pydantic and crc32c import it, too


def imported(*lines: str) -> frozenset[str]:
    """The modules that a new process has after *lines*."""
    code = "\n".join([*lines, "import sys", "print(*sys.modules)"])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    return frozenset(done.stdout.split())


def among(modules: frozenset[str], packages: tuple[str, ...]) -> list[str]:
    """The packages of *packages* of which something is imported."""
    return [one for one in packages if any(f"{module}.".startswith(f"{one}.") for module in modules)]


def test_the_command_starts_the_replicator_before_it_imports_what_reads_a_flow():
    modules = imported("import mirrorflow_cli.__main__, mirrorflow_cli.commands.run")

    later = (*OF_THE_RESOURCE, *OF_BROKERS, OF_THE_VERSION, "mirrorflow_replicator.connectors")
    assert [] == among(modules, (*NEVER, *later))


def test_reading_a_flow_imports_no_client():
    modules = imported("import mirrorflow_cli.flow_runner")

    unneeded = ("kafka.protocol", "mirrorflow_kafka.client", "mirrorflow_replicator.connectors", "h11")
    assert [] == among(modules, (*NEVER, *unneeded))


@pytest.mark.parametrize("mode", ["worker", "task"])
def test_a_replicator_imports_nothing_of_the_resource(mode: str):
    modules = imported(
        "from mirrorflow_replicator.__main__ import _import_modules; _import_modules()"
        if mode == "worker"
        else "import mirrorflow_replicator.worker.task_process"
    )

    assert [] == among(
        modules, (*NEVER, *OF_THE_RESOURCE, "mirrorflow_cli", "kafka.consumer", "kafka.producer")
    )


def test_the_operator_imports_of_the_kubernetes_package_only_login_and_transport():
    """kopf imports the package, whose `__init__` imports everything: 10 MiB of private memory instead of 3."""
    modules = imported("import mirrorflow_operator.process")

    unneeded = (
        "kubernetes.client.api",
        "kubernetes.client.rest",
        "kubernetes.config",
        "kubernetes.dynamic",
        "kubernetes.informer",
        "kubernetes.stream",
        "kubernetes.watch",
        "kubernetes.aio.client.api",
        "kubernetes.aio.dynamic",
        "kubernetes.aio.leaderelection",
        "kubernetes.aio.stream",
        "kubernetes.aio.watch",
        "urllib3",
    )
    assert [] == among(modules, unneeded)
