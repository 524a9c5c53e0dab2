"""A server of Spark Connect on this machine, and the packages that only its clients need."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.harness.kafka.processes import Child, HarnessError, free_port, start, wait_until
from tests.harness.spark.standalone import LIGHT_JVM, end

# Installed apart (`make test-spark`): the tests of classic sessions show that those need no pandas.
CLIENT_PACKAGES: Final = Path(__file__).parents[3] / ".cache" / "spark-connect" / "packages"
SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED: Final = "Spark Connect server started at"
START_WAIT_S: Final = 120.0


@contextmanager
def connect_server(folder: Path, *, spark_home: Path, cores: int = 2) -> Iterator[str]:
    """Yields the address of a server whose tasks run in its own JVM; *folder* receives its log."""
    if not CLIENT_PACKAGES.exists():
        raise HarnessError(f"{CLIENT_PACKAGES} is missing: run `make test-spark` once.")
    port = free_port()
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    command = [
        *(str(spark_home / "bin" / "spark-submit"), "--class", SERVER, "--master", f"local[{cores}]"),
        *("--driver-java-options", LIGHT_JVM),
        *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
        "spark-internal",
    ]
    environment = {"SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable}
    child = start("connect-server", command, log=folder / "connect-server.log", environment=environment)
    try:
        wait_until("the Connect server is started", lambda: _has_started(child), timeout_s=START_WAIT_S)
        yield f"sc://127.0.0.1:{port}"
    finally:
        end(child)


def _has_started(child: Child) -> bool:
    child.must_run()
    return STARTED in child.log.read_text()
