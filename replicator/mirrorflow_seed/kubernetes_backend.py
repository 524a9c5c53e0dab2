"""Configures Spark's Kubernetes backend for a driver in a pod, and starts executors.

    the driver's environment, by the downward API:  POD_NAME  POD_NAMESPACE  POD_IP
    job.properties:  master=k8s://API-SERVER
                     executors.max=4
                     spark.kubernetes.container.image=...
                     spark.kubernetes.executor.podTemplateFile=...   (its container is called `executor`)

Other `spark.*` keys of job.properties override these settings, for example the sizes. The driver requests only
pods from the API server. Executors get volumes, labels and security contexts from the template, and no token.
Speculation is off, but exactly-once does not depend on it: the target accepts a record only once, even if two
executors write it.
"""

import os
import pwd
import re
import shlex
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final

from mirrorflow_seed.errors import JobSettingError, SparkMissingError
from mirrorflow_seed.settings import POD_TEMPLATE_KEY, JobSettings

DRIVER_PORT: Final = 7078  # fixed ports, so that a NetworkPolicy can name them
BLOCKS_PORT: Final = 7079
# Records do not pass through the JVM, but Spark needs 450 MiB of heap to start.
HEAP_MIB: Final = 512
JVM_MIB: Final = 256  # classes, code, threads and network buffers beside the heap
TASK_MIB: Final = 256  # a Python process and its in-flight data
CORES: Final = 1
# During a long seed, nodes leave and pods are evicted; only executors that never work should fail it.
FAILURES_PER_EXECUTOR: Final = 10
FAILURES_MIN: Final = 20
TEMPLATE_CONTAINER: Final = "executor"
BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:-UsePerfData -XX:ReservedCodeCacheSize=64m"
IMAGE_KEY: Final = "spark.kubernetes.container.image"
EXECUTOR_IMAGE_KEY: Final = "spark.kubernetes.executor.container.image"
CORES_KEY: Final = "spark.executor.cores"
PROPERTIES_OPTION: Final = "--properties-file"

FIXED: Final[Mapping[str, str]] = {
    # Request only pods, so that the driver's Role needs no other permission.
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.executor.podTemplateContainerName": TEMPLATE_CONTAINER,
    # A killed task loses nothing: its next attempt resumes from the target's state.
    "spark.kubernetes.executor.terminationGracePeriodSeconds": "10s",
    "spark.driver.port": str(DRIVER_PORT),
    "spark.driver.blockManager.port": str(BLOCKS_PORT),
    "spark.blockManager.port": str(BLOCKS_PORT),
    # Otherwise any client of an executor could run code in it. Spark creates a key for each application.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # A seed ends with a few large partitions: idle executors are removed meanwhile.
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "30s",
    # Begin with the first executor: in a full cluster, the last one may stay pending for an hour.
    "spark.scheduler.minRegisteredResourcesRatio": "0",
    "spark.locality.wait": "0s",
    # After a minute, other nodes take over the work of a frozen one.
    "spark.network.timeout": "60s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.executor.failuresValidityInterval": "1h",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
}
_EXECUTOR_VARIABLES: Final = (
    "DRIVER_URL",
    "EXECUTOR_ID",
    "EXECUTOR_CORES",
    "EXECUTOR_MEMORY",
    "APPLICATION_ID",
    "EXECUTOR_POD_IP",
    "EXECUTOR_POD_NAME",
    "RESOURCE_PROFILE_ID",
)


def is_pod(environment: Mapping[str, str]) -> bool:
    """Returns whether the driver runs in a pod that the downward API describes; else Spark's own settings count."""
    return any(environment.get(name) for name in ("POD_NAME", "POD_NAMESPACE", "POD_IP"))


def conf(job: JobSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns Spark's conf for a driver in client mode in a pod, without the master; it contains no secret.

    *environment* is the pod's. Raises JobSettingError.
    """
    cores = job.extra.get(CORES_KEY, str(CORES))
    if not re.fullmatch(r"[1-9][0-9]?", cores):
        raise JobSettingError(
            key=CORES_KEY, problem=f"{cores!r} is not a number of tasks", action="write 1 to 99"
        )
    address = _pod_variable(environment, "POD_IP")
    host = f"[{address}]" if ":" in address else address
    executors = job.executors_max
    return {
        **FIXED,
        "spark.kubernetes.namespace": _pod_variable(environment, "POD_NAMESPACE"),
        "spark.kubernetes.driver.pod.name": _pod_variable(environment, "POD_NAME"),
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,  # the pod IP that executors use, whatever the host name resolves to
        "spark.driver.memory": f"{HEAP_MIB}m",
        IMAGE_KEY: _required(job.extra, IMAGE_KEY),
        POD_TEMPLATE_KEY: _required(job.extra, POD_TEMPLATE_KEY),
        CORES_KEY: cores,
        # The plan is made before all executors have started, and divides the work among all of them.
        "spark.default.parallelism": str(executors * int(cores)),
        "spark.executor.memory": f"{HEAP_MIB}m",
        "spark.executor.memoryOverhead": f"{JVM_MIB + TASK_MIB * int(cores)}m",
        "spark.dynamicAllocation.initialExecutors": str(executors),
        "spark.dynamicAllocation.maxExecutors": str(executors),
        "spark.executor.maxNumFailures": str(max(FAILURES_MIN, FAILURES_PER_EXECUTOR * executors)),
    }


def executor_command(environment: Mapping[str, str]) -> list[str]:
    """Returns the command of the executor that Spark's variables describe. Raises SparkMissingError."""
    try:
        variables = {name: environment[f"SPARK_{name}"] for name in _EXECUTOR_VARIABLES}
        home = environment["SPARK_HOME"]
    except KeyError as error:
        raise SparkMissingError(
            f"{error.args[0]} is not set; `executor` is internal: Spark starts it in executor pods."
        ) from error
    java = f"{environment['JAVA_HOME']}/bin/java" if "JAVA_HOME" in environment else "java"
    options = {
        int(name.removeprefix("SPARK_JAVA_OPT_")): value
        for name, value in environment.items()
        if re.fullmatch(r"SPARK_JAVA_OPT_\d+", name)
    }
    classes = [path for path in (environment.get("SPARK_CLASSPATH", ""), f"{home}/jars/*") if path]
    memory = variables["EXECUTOR_MEMORY"]
    return [
        *(java, *(options[number] for number in sorted(options)), f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", ":".join(classes), BACKEND),
        *("--driver-url", variables["DRIVER_URL"], "--executor-id", variables["EXECUTOR_ID"]),
        *("--cores", variables["EXECUTOR_CORES"], "--app-id", variables["APPLICATION_ID"]),
        *("--hostname", variables["EXECUTOR_POD_IP"], "--podName", variables["EXECUTOR_POD_NAME"]),
        *("--resourceProfileId", variables["RESOURCE_PROFILE_ID"]),
    ]


def exec_executor(arguments: Sequence[str]) -> int:  # noqa: ARG001 Spark passes everything in variables
    """Replaces this process with the executor that Spark's variables describe. Raises SparkMissingError."""
    environment = {**os.environ, **user_name_variables()}
    command = executor_command(environment)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 no shell, so that Spark's signals reach the JVM
    except FileNotFoundError as error:
        raise SparkMissingError(f"{command[0]} is missing; an executor needs Java 17 or later.") from error


def user_name_variables() -> dict[str, str]:
    """Returns environment variables that give this process's user id a name, which Hadoop requires.

    Empty if the user id has a name, or if the library for this, which the image has beside Java, is missing.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        library = Path(os.environ.get("JAVA_HOME", "")) / "lib" / "libnss_wrapper.so"
        if not library.exists():
            return {}
        names = Path(tempfile.gettempdir()) / f"passwd-{os.getuid()}"
        names.write_text(f"mirrorflow:x:{os.getuid()}:{os.getgid()}::{tempfile.gettempdir()}:/bin/false\n")
        return {
            "LD_PRELOAD": str(library),
            "NSS_WRAPPER_PASSWD": str(names),
            "NSS_WRAPPER_GROUP": "/etc/group",
        }
    return {}


def driver_command(given: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the properties file and the program's arguments of the driver that spark-submit has described in cluster mode.

    *given*: --properties-file FILE --class CLASS [--proxy-user USER] PROGRAM ARGUMENT... Raises SparkMissingError.
    """
    options = dict[str, str]()
    position = 0
    while position + 1 < len(given) and given[position].startswith("--"):
        options[given[position]] = given[position + 1]
        position += 2
    if PROPERTIES_OPTION not in options or position >= len(given):
        raise SparkMissingError(
            f"{PROPERTIES_OPTION} is missing; `driver` is internal: spark-submit starts it in the driver's pod."
        )
    return options[PROPERTIES_OPTION], list(given[position + 1 :])


def use_properties_of_submission(file: str, environment: MutableMapping[str, str]) -> None:
    """Lets the session that this process starts also have the properties in *file*; those of the job and our own win over them.

    The Spark operator finds the executors by labels that are among them.
    """
    environment["PYSPARK_SUBMIT_ARGS"] = shlex.join(
        ["--deploy-mode", "client", PROPERTIES_OPTION, file, "pyspark-shell"]
    )


def _pod_variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise JobSettingError(
            key=name,
            problem="it is missing in the environment",
            action="let the downward API set it in the driver's pod, or use master=local[*]",
        )
    return value


def _required(given: Mapping[str, str], key: str) -> str:
    if not given.get(key):
        raise JobSettingError(key=key, problem="it is not set", action="set it, or use master=local[*]")
    return given[key]
