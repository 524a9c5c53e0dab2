"""A real YARN on this machine: Hadoop's own resource manager with one node manager, whose containers are processes."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

from tests.harness.kafka.processes import Child, HarnessError, start, wait_until
from tests.harness.spark.standalone import LIGHT_JVM, end

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
POM: Final = HERE / "yarn.xml"
PROGRAM: Final = HERE / "java" / "YarnCluster.java"
LIBRARIES: Final = ROOT / ".cache" / "yarn" / "libs"
DOWNLOADED: Final = LIBRARIES / ".complete"
# A driver in a container, and two executors.
MEMORY_MIB: Final = 4_096
DOWNLOAD_S: Final = 600.0
START_WAIT_S: Final = 180.0
LIGHT: Final = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.instances": "2",
    "spark.yarn.am.memory": "512m",
    "spark.driver.extraJavaOptions": LIGHT_JVM,
    "spark.executor.extraJavaOptions": LIGHT_JVM,
    "spark.yarn.am.extraJavaOptions": LIGHT_JVM,
    "spark.ui.enabled": "false",
}


@dataclass(kw_only=True, slots=True)
class YarnCluster:
    """A resource manager and a node manager; *folder* receives logs, configuration and containers."""

    folder: Path
    spark_home: Path
    _child: Child = field(init=False)

    def __enter__(self) -> Self:
        download()
        classes = f"{LIBRARIES}/*"
        command = ["java", *LIGHT_JVM.split(), "-Xmx512m", "-cp", classes, str(PROGRAM)]
        # The node manager's folders are below the working directory.
        self._child = start(
            "yarn",
            [*command, str(self.folder), str(MEMORY_MIB)],
            log=self.folder / "yarn.log",
            directory=self.folder,
        )
        try:
            wait_until("YARN is started", self._is_ready, timeout_s=START_WAIT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self._child)

    def _is_ready(self) -> bool:
        self._child.must_run()
        return (self.folder / "ready").exists()

    def submit(
        self,
        arguments: Sequence[str],
        *,
        mode: Literal["client", "cluster"],
        log: Path,
        files: Sequence[str] = (),
        report: Path,
    ) -> Child:
        """Starts `spark-submit` with `mirrorflow-seed` and *arguments*; the driver writes its last report to *report*."""
        import mirrorflow_seed

        conf = {
            **LIGHT,
            "spark.yarn.jars": f"local:{self.spark_home}/jars/*",
            "spark.yarn.stagingDir": str(self.folder / "staging"),
            "spark.pyspark.python": sys.executable,
            "spark.yarn.appMasterEnv.TERMINATION_MESSAGE": str(report),
        }
        program = Path(mirrorflow_seed.__file__).with_name("__main__.py")
        command = [
            *(str(self.spark_home / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", mode),
            *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
            *(("--files", ",".join(files)) if files else ()),
            str(program),
            *arguments,
        ]
        environment = {
            "SPARK_HOME": str(self.spark_home),
            "HADOOP_CONF_DIR": str(self.folder / "conf"),
            "TERMINATION_MESSAGE": str(report),
        }
        return start("spark-submit", command, log=log, environment=environment)


def download() -> None:
    """Lets Maven download YARN once (110 MB). Raises HarnessError."""
    if DOWNLOADED.exists() and DOWNLOADED.stat().st_mtime >= POM.stat().st_mtime:
        return
    command = [
        *("mvn", "-q", "-B", "--no-transfer-progress", "-f", str(POM), "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={LIBRARIES}"),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_S)
    if finished.returncode:
        raise HarnessError(f"Maven could not fetch YARN: {finished.stdout[-600:]}")
    DOWNLOADED.touch()
