"""Creates the Spark context of a job: `local[*]` on one machine, or Spark's own Kubernetes backend.

Spark retries a failed task up to TASK_FAILURES_MAX times (`seed.seed_task_attempt`). Speculation is off, and nothing is
shuffled or cached. No conf, argument or closure carries a secret: tasks get paths.
"""

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorflow_seed import kubernetes_backend
from mirrorflow_seed.errors import JobFailedError, SparkMissingError
from mirrorflow_seed.settings import JobSettings

if TYPE_CHECKING:
    from pyspark import SparkContext

LOGGING = Path(__file__).with_name("log4j2.properties")
# This JVM only schedules and moves no records, so a quick start matters more than optimized code.
LIGHT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
KUBERNETES_PREFIX = "k8s://"
# Attempts of a task before the job fails: executors are lost and replaced for hours. What a retried attempt of a seed
# does is decided in `seed.seed_task_attempt`.
TASK_FAILURES_MAX = 8
CAUSE_CHARACTERS_MAX = 500
STDERR = 2  # the file descriptor
BASE_CONF = {
    "spark.speculation": "false",
    "spark.task.maxFailures": str(TASK_FAILURES_MAX),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A reused Python worker has already imported its modules, so a task starts in milliseconds.
    "spark.python.worker.reuse": "true",
}


@contextlib.contextmanager
def spark_context(job: JobSettings, name: str, *, light: bool = True) -> "Iterator[SparkContext]":
    """Yields a SparkContext for *job* and stops it at the end. Raises SparkMissingError, JobFailedError.

    *light* tunes the JVM for a quick start; it is False where records pass through the JVM.
    """
    require_spark()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 the extra `seed`

    # By default, workers run the `python3` of PATH, which is not the interpreter of a driver in a venv.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.update(kubernetes_backend.user_name_variables())
    conf = SparkConf().setAppName(name).setMaster(_master(job.master))
    for key, value in BASE_CONF.items():
        conf.set(key, value)
    if job.master.startswith(KUBERNETES_PREFIX):
        for key, value in kubernetes_backend.conf(job, os.environ).items():
            conf.set(key, value)
    else:
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
        options = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {LIGHT_JVM if light else ''}"
        conf.set("spark.driver.extraJavaOptions", options)
    for key, value in job.extra.items():
        if key.startswith("spark."):
            conf.set(key, value)
    try:
        with _without_java_notice():
            context = SparkContext(conf=conf)
    except Exception as error:
        raise JobFailedError(f"Spark cannot be started: {cause_of(error)}") from error
    try:
        yield context
    finally:
        context.stop()


# The JVM prints this for a module that Spark loads, and has no switch for it.
JAVA_NOTICE = b"WARNING: Using incubator modules"


@contextlib.contextmanager
def _without_java_notice() -> Iterator[None]:
    """Leaves JAVA_NOTICE out of the stderr of a process that is started inside the block; passes on all else."""
    reading, writing = os.pipe()
    stderr = os.dup(STDERR)
    os.dup2(writing, STDERR)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, os.dup(stderr)), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, STDERR)
        os.close(stderr)


def _pass_on(reading: int, stderr: int) -> None:
    with open(reading, "rb") as lines, open(stderr, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(JAVA_NOTICE):
                out.write(line)


@contextlib.contextmanager
def given_or_new_context(
    job: JobSettings, name: str, spark: "SparkContext | None", *, light: bool = True
) -> "Iterator[SparkContext]":
    """Yields *spark* if it is given, and leaves it open; otherwise a new context for *job*, as `spark_context`."""
    if spark is not None:
        yield spark
        return
    with spark_context(job, name, light=light) as context:
        yield context


def driver_url(context: "SparkContext", port: int | None, path: str) -> str:
    """Returns the URL of *path* on the driver's own HTTP server, for tasks."""
    return f"http://{context.getConf().get('spark.driver.host', '127.0.0.1')}:{port}{path}"


def cause_of(error: BaseException) -> str:
    """Returns one sentence for a Spark error: that of our own error in a task, else Java's innermost cause."""
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for marks in (("mirrorflow_",), ("Caused by: ",), (": ",)):
        # The last line is the innermost cause; outer errors repeat it.
        for line in reversed(lines):
            _, found, sentence = line.partition(": ")
            if line.startswith(marks) and found:
                return sentence[:CAUSE_CHARACTERS_MAX]
    return lines[0][:CAUSE_CHARACTERS_MAX] if lines else type(error).__name__


def require_spark() -> None:
    """Raises SparkMissingError, which says what to install, if pyspark or Java is missing."""
    try:
        import pyspark  # noqa: F401, PLC0415
    except ImportError as error:
        raise SparkMissingError(
            "pyspark is not installed; install it in MirrorFlow's folder with: pip install '.[cli,seed]'."
        ) from error
    home = os.environ.get("JAVA_HOME", "")
    if shutil.which("java") is None and not (home and os.access(f"{home}/bin/java", os.X_OK)):
        raise SparkMissingError("Spark needs Java 17 or later; install one, or set JAVA_HOME to it.")


def _master(master: str) -> str:
    """Returns *master*; local[n] with a failure limit, as the job otherwise fails with the first failed attempt."""
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{TASK_FAILURES_MAX}]"
    return master
