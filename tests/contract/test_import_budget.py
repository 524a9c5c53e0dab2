"""Limits the modules that are imported before the first record, because imports take most of a start.

`mirrorflow run` first starts the replicator and then reads its flow, so that both import at the same time. Modules that
are not needed before the first record are imported when they are used.
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
RESOURCE_MODULES = ("mirrorflow_cli.flow_arguments", "mirrorflow_operator", "pydantic", "yaml")
BROKER_MODULES = ("asyncio", "kafka", "mirrorflow_kafka", "ssl")
REPLICATOR_IMPORTS = {
    "worker": "from mirrorflow_replicator.__main__ import _import_modules; _import_modules()",
    "task": "import mirrorflow_replicator.worker.task_process",
}
VERSION_MODULE = "importlib.metadata"  # pydantic and crc32c import it too


def imported_by(*lines: str) -> frozenset[str]:
    """Returns the modules that a new process has imported after running *lines*."""
    code = "\n".join([*lines, "import sys", "print(*sys.modules)"])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    return frozenset(done.stdout.split())


def imported_packages(modules: frozenset[str], packages: tuple[str, ...]) -> list[str]:
    """Returns the entries of *packages* of which at least one module is in *modules*."""
    return [
        package for package in packages if any(f"{module}.".startswith(f"{package}.") for module in modules)
    ]


def test_the_command_starts_the_replicator_before_it_imports_modules_to_read_a_flow():
    modules = imported_by("import mirrorflow_cli.__main__, mirrorflow_cli.commands.run")

    later = (*RESOURCE_MODULES, *BROKER_MODULES, VERSION_MODULE, "mirrorflow_replicator.connectors")
    assert [] == imported_packages(modules, (*NEVER, *later))


def test_reading_a_flow_imports_no_kafka_client():
    modules = imported_by("import mirrorflow_cli.flow_runner")

    unneeded = (
        "asyncio",
        "h11._connection",
        "http.client",
        "kafka.protocol.api_message",
        "mirrorflow_kafka.client",
        "mirrorflow_replicator.connectors",
    )
    assert [] == imported_packages(modules, (*NEVER, *unneeded))


@pytest.mark.parametrize("mode", ["worker", "task"])
def test_a_replicator_imports_no_modules_of_the_resource(mode: str):
    modules = imported_by(REPLICATOR_IMPORTS[mode])

    assert [] == imported_packages(
        modules, (*NEVER, *RESOURCE_MODULES, "mirrorflow_cli", "kafka.consumer", "kafka.producer")
    )


@pytest.mark.parametrize("mode", ["worker", "task"])
def test_a_replicator_imports_only_what_it_needs_before_the_first_record(mode: str):
    """Classes of Kafka's requests are created from JSON files, each of which takes a millisecond."""
    modules = imported_by(REPLICATOR_IMPORTS[mode])

    later = (
        "h11._connection",
        "kafka.protocol.admin.acl",
        "kafka.protocol.admin.cluster",
        "kafka.protocol.admin.groups",
        "kafka.protocol.admin.transactions",
        "kafka.protocol.admin.users",
        "kafka.protocol.consumer.fetch",
        "kafka.protocol.consumer.group",
        "kafka.protocol.producer.produce",
        "mirrorflow_core.schemas",
        "mirrorflow_kafka.stores.group_membership",
        "mirrorflow_replicator.worker.distributed_herder",
        "mirrorflow_replicator.worker.group_node",
        "mirrorflow_replicator.worker.internal_rest",
    )
    assert [] == imported_packages(modules, later)


def test_the_operator_imports_only_login_and_transport_of_the_kubernetes_package():
    """kopf imports the package, whose `__init__` imports all its modules.

    They would need 10 MiB of private memory instead of 3.
    """
    modules = imported_by("import mirrorflow_operator.process")

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
    assert [] == imported_packages(modules, unneeded)
