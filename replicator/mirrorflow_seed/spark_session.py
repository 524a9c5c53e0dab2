"""Finds or creates the Spark session of a job, classic or Spark Connect.

    a session that was passed ──> the active one ──> spark-submit's ──> that of a Connect server ──> our own

What the user's Spark decides stays: master, deploy mode, addresses, UI, event log, resources, Python, packages. Our own
defaults (`_own_defaults`) count only where this process starts Spark itself, and only for keys that neither
spark-defaults.conf nor the job sets. No conf, argument or closure carries a secret.

Spark retries a failed task `spark.task.maxFailures` times (`seed.seed_task_attempt`).
"""

import contextlib
import importlib
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_replicator.process import importing
from mirrorflow_seed import kubernetes_backend
from mirrorflow_seed.errors import JobFailedError, JobSettingError, SeedError, SparkMissingError
from mirrorflow_seed.settings import KUBERNETES_PREFIX, JobSettings
from mirrorflow_seed.signal_handlers import handling
from mirrorflow_seed.spark_errors import PYTHON_KEY, quiet_start, start_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING: Final = Path(__file__).with_name("log4j2.properties")
# This JVM only schedules and moves no records, so a quick start matters more than optimized code.
LIGHT_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOCAL_PREFIX: Final = "local"
LOCAL_MASTER: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"
# Attempts of a task before the job fails: executors are lost and replaced for hours. What a retried attempt of a seed
# does is decided in `seed.seed_task_attempt`.
TASK_FAILURES_MAX: Final = 8
MASTER_KEY: Final = "spark.master"
REMOTE_KEY: Final = "spark.remote"
NAME_KEY: Final = "spark.app.name"
DRIVER_HOST_KEY: Final = "spark.driver.host"
# spark-submit starts the JVM first, and names its port to the program.
SUBMITTED_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"
REMOTE_VARIABLE: Final = "SPARK_REMOTE"
# Spark tries an unreachable standalone master for a minute and an API server for half of one, and then reports only that
# the session has ended.
MASTER_REACHABLE_S: Final = 15.0
MASTER_POLL_S: Final = 0.5
# Masters that are addresses, and the port of one without; longer prefixes first.
_DEFAULT_PORTS: Final[Mapping[str, int | None]] = {
    "spark://": None,
    "sc://": 15002,
    f"{KUBERNETES_PREFIX}https://": 443,
    f"{KUBERNETES_PREFIX}http://": 80,
    KUBERNETES_PREFIX: 443,
}
BASE_CONF: Final[Mapping[str, str]] = {
    "spark.speculation": "false",
    "spark.task.maxFailures": str(TASK_FAILURES_MAX),
    "spark.ui.showConsoleProgress": "false",
    # A reused Python worker has already imported its modules, so a task starts in milliseconds.
    "spark.python.worker.reuse": "true",
}


def imported_job(module: str) -> Any:
    """Returns the module *module* of a job, with PySpark imported, if it is installed: a signal takes effect afterwards."""
    with importing():
        job = importlib.import_module(f"mirrorflow_seed.{module}")
        with contextlib.suppress(ImportError):  # `require_spark` says what to install
            import pyspark.sql  # noqa: F401, PLC0415
    return job


@contextlib.contextmanager
def spark_session(
    job: JobSettings, name: str, spark: "SparkSession | None" = None, *, light: bool = True
) -> "Iterator[SparkSession]":
    """Yields the session for *job*, and stops it at the end if this process has started it.

    *light* tunes the JVM of our own session for a quick start; it is False where records pass through the JVM.
    Raises SparkMissingError, JobSettingError, JobFailedError.
    """
    require_spark(needs_java=not _remote(job))
    from pyspark.sql import SparkSession  # noqa: PLC0415 the extra `seed`

    existing = spark or SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    try:
        with quiet_start() as printed, _own_interrupt(), _without_unused_remote(job):
            session = _builder(SparkSession.builder, job, name, light=light).getOrCreate()
    except SeedError:
        raise
    except Exception as error:
        raise start_error(error, printed) from error
    try:
        yield session
    finally:
        session.stop()


def _builder(builder: Any, job: JobSettings, name: str, *, light: bool) -> Any:
    """Returns *builder* with the settings of a session that this process starts. Raises JobSettingError, JobFailedError."""
    given = {key: value for key, value in job.extra.items() if key.startswith("spark.")}
    given.pop(REMOTE_KEY, None)
    if remote := _remote(job):
        require_reachable(remote)
        builder = builder.remote(remote)
    elif SUBMITTED_VARIABLE in os.environ:
        given = _submitted(job, name) | given
    else:
        given = _own(job, name, given, light=light)
        require_reachable(given[MASTER_KEY])
        _launch_jvm(given)
    for key, value in given.items():
        builder = builder.config(key, value)
    return builder


def _launch_jvm(given: Mapping[str, str]) -> None:
    """Launches the JVM of a session with the settings *given*; signals take effect when it has started.

    If PySpark is interrupted while it launches a JVM, that JVM runs on forever.
    """
    from pyspark import SparkConf  # noqa: PLC0415 the extra `seed`
    from pyspark.core.context import SparkContext  # noqa: PLC0415

    conf = SparkConf().setAll(list(given.items()))
    arrived: list[int] = []
    with handling(lambda number, _: arrived.append(number), signal.SIGINT, signal.SIGTERM):
        SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001 what the session does next
    for number in arrived:
        signal.raise_signal(number)


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keeps the handler of Ctrl-C: PySpark's own calls the JVM, from within a call that is being interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _remote(job: JobSettings) -> str:
    """Returns the address of the Connect server to use, sc://HOST:PORT; "" for a classic session."""
    return job.extra.get(REMOTE_KEY) or ("" if job.master else os.environ.get(REMOTE_VARIABLE, ""))


@contextlib.contextmanager
def _without_unused_remote(job: JobSettings) -> Iterator[None]:
    """Hides the Connect server of the environment inside the block if *job* has a master, which takes precedence: PySpark refuses both."""
    unused = None if _remote(job) else os.environ.pop(REMOTE_VARIABLE, None)
    try:
        yield
    finally:
        if unused is not None:
            os.environ[REMOTE_VARIABLE] = unused


def _submitted(job: JobSettings, name: str) -> dict[str, str]:
    """Returns what spark-submit leaves open: the name of the application. Raises JobSettingError, JobFailedError."""
    from pyspark import SparkConf  # noqa: PLC0415 the extra `seed`
    from pyspark.core.context import SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()  # noqa: SLF001 connects to the JVM, which has spark-submit's settings
    conf = SparkConf()
    master = conf.get(MASTER_KEY) or ""
    if job.master and job.master != master:
        raise JobSettingError(
            key="master",
            problem=f"it is {job.master}, and spark-submit has chosen {master}",
            action="leave out one of both",
        )
    require_reachable(master)
    # Without --name, spark-submit names an application after its program.
    is_named = (conf.get(NAME_KEY) or "") not in {"", Path(sys.argv[0]).name}
    return {} if is_named else {NAME_KEY: name}


def _own(job: JobSettings, name: str, given: Mapping[str, str], *, light: bool) -> dict[str, str]:
    """Returns the settings of a Spark that this process starts: *given*, and our defaults for what is not set."""
    theirs = {**user_defaults(os.environ), **given}
    master = job.master or theirs.get(MASTER_KEY, LOCAL_MASTER)
    if master.startswith(KUBERNETES_PREFIX):
        _require_image(theirs)
    # By default, workers run the `python3` of PATH, which is not the interpreter of a driver in a venv.
    os.environ.setdefault("PYSPARK_PYTHON", theirs.get(PYTHON_KEY, sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.update(kubernetes_backend.user_name_variables())
    defaults = _own_defaults(job, master, light=light)
    return {
        **{key: value for key, value in defaults.items() if key not in theirs},
        **given,
        NAME_KEY: theirs.get(NAME_KEY, name),
        MASTER_KEY: _with_retries(master),
    }


def _require_image(settings: Mapping[str, str]) -> None:
    """Raises JobSettingError if *settings* name no image for executors; Spark asks for one after it has started."""
    keys = (kubernetes_backend.IMAGE_KEY, kubernetes_backend.EXECUTOR_IMAGE_KEY)
    if not any(settings.get(key) for key in keys):
        raise JobSettingError(
            key=kubernetes_backend.IMAGE_KEY,
            problem="it is not set, and executors are pods",
            action="name an image that has Spark and MirrorFlow, such as mirrorflow/seed, or use master=local[*]",
        )


def _own_defaults(job: JobSettings, master: str, *, light: bool) -> dict[str, str]:
    """Returns our defaults for *master*."""
    logging = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    if master.startswith(KUBERNETES_PREFIX) and kubernetes_backend.is_pod(os.environ):
        return {**BASE_CONF, "spark.ui.enabled": "false", **kubernetes_backend.conf(job, os.environ)}
    if not master.startswith(LOCAL_PREFIX):
        return {**BASE_CONF, "spark.driver.extraJavaOptions": logging}
    return {
        **BASE_CONF,
        "spark.ui.enabled": "false",
        DRIVER_HOST_KEY: LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": f"{logging} {LIGHT_JVM if light else ''}",
    }


def user_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of spark-defaults.conf, which Spark itself applies; empty without the file."""
    folder = environment.get("SPARK_CONF_DIR") or (
        f"{environment['SPARK_HOME']}/conf" if environment.get("SPARK_HOME") else ""
    )
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text("utf-8") if folder else ""
    except OSError:
        return {}
    return {key: value.strip() for key, value in parse_properties(text).items()}


def require_reachable(master: str, *, timeout_s: float = MASTER_REACHABLE_S) -> None:
    """Waits until *master*, if it names addresses, accepts a connection: a standalone cluster, Connect, an API server.

    Raises JobFailedError after *timeout_s*, JobSettingError for an address without host or port.
    """
    addresses = _addresses_of(master)
    if not addresses:
        return
    deadline_s = time.monotonic() + timeout_s
    while True:
        reason = ""
        for host, port in addresses:
            try:
                socket.create_connection((host, port), timeout=timeout_s).close()
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                return
        if time.monotonic() > deadline_s:
            raise JobFailedError(f"Spark's master {master} cannot be reached: {reason}.")
        time.sleep(MASTER_POLL_S)


def _addresses_of(master: str) -> list[tuple[str, int]]:
    """Returns hosts and ports of *master*, one of which must be reachable; empty where it names none.

    Raises JobSettingError.
    """
    prefix = next((scheme for scheme in _DEFAULT_PORTS if master.startswith(scheme)), "")
    if not prefix:
        return []
    addresses = []
    for place in master.removeprefix(prefix).split(","):
        try:
            url = urlsplit(f"//{place}")
            host, given = url.hostname, url.port or _DEFAULT_PORTS[prefix]
        except ValueError:
            host, given = None, None
        if not host or given is None:
            raise JobSettingError(
                key="master", problem=f"{master} has no host and port", action=f"write {prefix}HOST:PORT"
            )
        addresses.append((host, given))
    return addresses


def is_connect(session: "SparkSession") -> bool:
    """Returns whether *session* is one of Spark Connect, whose driver is another process."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def runs_here(session: "SparkSession") -> bool:
    """Returns whether all tasks of *session* run on this machine, in this file system."""
    return not is_connect(session) and bool(session.sparkContext.master.startswith(LOCAL_PREFIX))


def driver_address(session: "SparkSession") -> tuple[str, str]:
    """Returns the host name under which executors reach this process, and the address to listen on.

    With Spark Connect, executors know only the server; they may or may not reach this process.
    """
    if is_connect(session):
        server = urlsplit(session.client.host if ":" in session.client.host else f"//{session.client.host}")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((server.hostname or session.client.host, 1))
            host = str(probe.getsockname()[0])
        return host, host
    host = str(session.conf.get(DRIVER_HOST_KEY, LOOPBACK))
    return host, str(session.conf.get("spark.driver.bindAddress", host))


def require_spark(*, needs_java: bool = True) -> None:
    """Raises SparkMissingError, which says what to install, if pyspark or Java is missing."""
    try:
        import pyspark  # noqa: F401, PLC0415
    except ImportError as error:
        raise SparkMissingError(
            "pyspark is not installed; install it in MirrorFlow's folder with: pip install '.[cli,seed]'."
        ) from error
    home = os.environ.get("JAVA_HOME", "")
    if not needs_java:
        return
    if shutil.which("java") is None and not (home and os.access(f"{home}/bin/java", os.X_OK)):
        raise SparkMissingError("Spark needs Java 17 or later; install one, or set JAVA_HOME to it.")


def _with_retries(master: str) -> str:
    """Returns *master*; local[n] with a failure limit, as the job otherwise fails with the first failed attempt."""
    if re.fullmatch(r"local\[[^,\]]+\]", master):
        return f"{master[:-1]},{TASK_FAILURES_MAX}]"
    return master
