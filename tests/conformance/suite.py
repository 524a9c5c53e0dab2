"""Runs one of Apache's test classes against the worker under test, in a separate JVM.

`run` passes on each test's result as it arrives, and returns a `Verdict`. A verdict is valid only if the worker under
test did the work. Then processes were started, MirrorFlow's class started them, and the tests' JVM has not loaded
Apache's own worker.
"""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.kafka.processes import HarnessError

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "conformance"
PACKAGE = "org.apache.kafka.connect.mirror.integration"
SUITES = {
    "base": "MirrorConnectorsIntegrationBaseTest",
    "identity": "IdentityReplicationIntegrationTest",
    "transactions": "MirrorConnectorsIntegrationTransactionsTest",
    "ssl": "MirrorConnectorsIntegrationSSLTest",
    "exactlyonce": "MirrorConnectorsIntegrationExactlyOnceTest",
    "dedicated": "DedicatedMirrorIntegrationTest",
}
# Versions of Kafka for brokers and tests. MirrorMaker 2 of 4.4.0 is not on Maven Central, so the tests of 4.3.1 run on
# its brokers.
VERSIONS = ("4.3.1", "4.4.0", "3.9.1")
# The jars of the second version follow those of the first. They have classes that its tests use but the first version
# has removed.
OF_OLDER_TESTS = {"4.4.0": ("4.3.1",)}
DEDICATED = "dedicated"  # MM2's own form, whose processes are identified by their topics instead of REST
EXCLUDED = ".*#testConnectorMetrics.*"  # these tests read a metrics reporter inside their JVM
SUITE_S = (
    3600.0  # ten minutes on two cores; who waits for each of its own limits takes not much longer than this
)
JUNIT_STATUSES = (0, 1)  # all passed, or some failed; JUnit returns no other status
HEAP_MIB = 1536  # for the tests, two brokers and two controllers
# Classes that would be in the tests' JVM if Apache's worker had run there.
OF_APACHES_WORKER = re.compile(
    r" (org\.apache\.kafka\.connect\.(?:runtime\.(?:WorkerTask|distributed\.DistributedHerder)"
    r"|mirror\.Mirror(?:Source|Checkpoint|Heartbeat)Task|mirror\.MirrorHerder)) source:"
)
BROKERS = re.compile(r" kafka\.server\.BrokerServer source: \S*kafka_2\.13-([\d.]+)\.jar")
SHIM_WAS_LOADED = re.compile(r" conformance\.WorkerProcess source: file:\S*shims\.jar")
REST_RESPONSE = re.compile(r" ready .* -> \{\"version\":\"([^\"]*)\"")
# Added to the properties of each worker if a cluster has several workers. Without the first, each would be the only
# node. The shorter session makes a lost node be replaced sooner.
SEVERAL = ("dedicated.mode.enable.internal.rest=true", "session.timeout.ms=6000")
_JAVA = (
    "java",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    f"-Dlog4j2.configurationFile=file:{HERE / 'log4j2-java.properties'}",
    "-cp",
    f"{CACHE / 'java-libs'}/*",
)
JAVA_WORKER = (*_JAVA, "org.apache.kafka.connect.cli.ConnectDistributed", "{properties}")
JAVA_DEDICATED = (*_JAVA, "org.apache.kafka.connect.mirror.MirrorMaker", "{properties}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a test. *reason* is the first line of its failure."""

    test: str
    passed: bool
    seconds: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of a suite. *problems* has the reasons why the suite is not valid."""

    suite: str
    kafka: str
    results: tuple[Result, ...]
    seconds: float
    processes: int  # processes of the worker under test
    versions: tuple[str, ...]  # versions that they report over REST
    problems: tuple[str, ...]
    folder: Path

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if not result.passed)

    @property
    def good(self) -> bool:
        return not self.failed and not self.problems


def run(
    suite: str,
    *,
    command: Sequence[str],
    tests: str = "",
    workers: int = 1,
    kafka: str = VERSIONS[0],
    folder: Path | None = None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Verdict:
    """Runs *suite*, or those of its tests whose names match the regular expression *tests*.

    *command* starts a worker; its file replaces `{properties}`. Each of the two Connect clusters has *workers*
    processes. *kafka* is one of VERSIONS. Files and logs are written to *folder*, which is emptied first.
    """
    if not (CACHE / ".ready").exists():
        raise HarnessError("Apache's tests are not there: run `make conformance`.")
    folder = folder or CACHE / "runs" / kafka / suite
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "processes.log").touch()
    begin = time.monotonic()
    tests_jvm = _jvm(suite, command, tests, workers, kafka, folder)
    results, status = _results(tests_jvm, folder / "tests.log", on_result)
    seconds = time.monotonic() - begin
    processes = (folder / "processes.log").read_text(errors="replace")
    problems = _problems(folder, results, status, processes, kafka)
    (folder / "loaded.log").unlink(missing_ok=True)  # large and no longer needed
    return Verdict(
        suite=suite,
        kafka=kafka,
        results=results,
        seconds=seconds,
        processes=len(re.findall(r"^\S+ start ", processes, re.MULTILINE)),
        versions=tuple(sorted(set(REST_RESPONSE.findall(processes)))),
        problems=problems,
        folder=folder,
    )


def _jvm(suite: str, command: Sequence[str], tests: str, workers: int, kafka: str, folder: Path) -> list[str]:
    selection = ["--include-methodname", f".*#(?:{tests})"] if tests else []
    return [
        "java",
        f"-Xmx{HEAP_MIB}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j2.configurationFile=file:{HERE / 'log4j2.properties'}",
        f"-Xlog:class+load=info:file={folder / 'loaded.log'}",
        "-Dconformance.command=" + "\n".join(command),
        "-Dconformance.properties=" + "\n".join(_added(suite, workers)),
        f"-Dconformance.folder={folder}",
        f"-Dconformance.workers={workers}",
        "-cp",
        ":".join(
            (
                f"{CACHE / kafka / 'shims.jar'}",
                *(f"{CACHE / version / 'libs'}/*" for version in (kafka, *OF_OLDER_TESTS.get(kafka, ()))),
            )
        ),
        "org.junit.platform.console.ConsoleLauncher",
        "execute",
        *("-c", f"{PACKAGE}.{SUITES[suite]}"),
        *("--include-classname", ".*"),
        *selection,
        *("--exclude-methodname", EXCLUDED),
        "--details=tree",
        "--details-theme=ascii",
        "--disable-ansi-colors",
        "--disable-banner",
    ]


def _added(suite: str, workers: int) -> Sequence[str]:
    return SEVERAL if workers > 1 and suite != DEDICATED else ()


def _results(
    command: Sequence[str], log: Path, on_result: Callable[[Result], None]
) -> tuple[tuple[Result, ...], int]:
    """Runs *command* until it ends, and returns the results that it has printed and its exit status."""
    results = []
    # The JVM receives SIGTERM when this process ends for any reason. It then ends its workers as well.
    with (
        log.open("w") as output,
        subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        limit = threading.Timer(SUITE_S, process.terminate)
        limit.start()
        try:
            for line in process.stdout:
                output.write(line)
                if line.startswith("@result\t"):
                    result = _result(line)
                    results.append(result)
                    on_result(result)
        except BaseException:  # interrupted; the clusters are stopped as well
            process.terminate()
            raise
        finally:
            limit.cancel()
    return tuple(results), process.returncode


def _result(line: str) -> Result:
    _, status, seconds, test, reason = line.rstrip("\n").split("\t", 4)
    return Result(
        test=test.removesuffix("()"), passed=status == "SUCCESSFUL", seconds=float(seconds), reason=reason
    )


def _problems(
    folder: Path, results: Sequence[Result], status: int, processes: str, kafka: str
) -> tuple[str, ...]:
    problems = []
    if status not in JUNIT_STATUSES:
        problems.append(f"the tests' JVM ended with status {status}; see {folder / 'tests.log'}")
    if not results:
        problems.append(f"no test has ended; see {folder / 'tests.log'}")
    if " start " not in processes:
        problems.append("no worker was ever started")
    is_shim_loaded = False
    inside = set()
    brokers = set()
    with (folder / "loaded.log").open(errors="replace") as loaded:
        for line in loaded:
            is_shim_loaded = is_shim_loaded or SHIM_WAS_LOADED.search(line) is not None
            if apaches := OF_APACHES_WORKER.search(line):
                inside.add(apaches[1])
            if broker := BROKERS.search(line):
                brokers.add(broker[1])
    if not is_shim_loaded:
        problems.append("workers were not started by the class of tests/conformance")
    if brokers != {kafka}:
        problems.append(f"the brokers were of Kafka {', '.join(sorted(brokers)) or 'no known version'}")
    problems.extend(
        f"the tests' JVM has loaded {name}, so the worker was not alone" for name in sorted(inside)
    )
    return tuple(problems)
