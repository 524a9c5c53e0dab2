"""The path of the Kafka that setup.sh installs, and the command lines of its Java programs."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.harness.kafka.processes import HarnessError

VERSION = "4.3.1"  # the newest release whose MirrorMaker 2 is on Maven Central
OLD_VERSION = "3.9.1"
NEWEST_VERSION = "4.4.0"
# Releases used only for brokers, each the last of its line on Maven Central.
OTHER_VERSIONS = ("2.8.2", "3.4.1", OLD_VERSION, NEWEST_VERSION)
HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache" / "kafka"
# These options make the JVM small and quick to start. Brokers of tests run for a short time, and several share two
# cores.
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")


def release_number(version: str) -> tuple[int, ...]:
    """Returns the number of a release, such as (3, 4, 1) for "3.4.1"."""
    return tuple(int(part) for part in version.split("."))


def needs_zookeeper(version: str) -> bool:
    """Returns whether brokers of *version* keep their metadata in ZooKeeper.

    KRaft supports ACLs and transactions since 3.3.
    """
    return release_number(version) < (3, 3)


def require_installation(version: str = VERSION) -> None:
    """Raises `HarnessError` if setup.sh has not installed Kafka *version*."""
    if not (CACHE / f".ready-{version}").exists():
        raise HarnessError(
            f"Kafka {version} is not installed: run `make setup`, or tests/harness/kafka/setup.sh {version}."
        )
    if shutil.which("java") is None:
        raise HarnessError("java is not on the path: run `make setup`.")


def java_command(
    main: str,
    *arguments: str,
    log: Path,
    version: str = VERSION,
    heap_mib: int = 256,
    jvm_options: Sequence[str] = QUICK_JVM,
    archived: bool = True,
) -> list[str]:
    """Returns the command that runs the Java class *main* with Kafka *version*. log4j writes to *log*.

    *archived* uses setup.sh's archive of classes, which starts faster than a user's own program would.
    """
    archive = [
        f"-XX:SharedArchiveFile={CACHE / version / 'classes.jsa'}",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
    ]
    return [
        "java",
        f"-Xmx{heap_mib}m",
        *jvm_options,
        *(archive if archived else []),
        f"-Dlog4j2.configurationFile=file:{HERE / 'log4j2.properties'}",
        f"-Dharness.log={log}",
        "-cp",
        f"{CACHE / 'harness.jar'}:{CACHE / version / 'libs'}/*",
        main,
        *arguments,
    ]


def write_properties(path: Path, properties: dict[str, str]) -> Path:
    """Writes a Java properties file. Backslashes, newlines and non-ASCII characters are escaped."""
    # JSON and Java's properties have the same escapes, also for characters of more than 16 bits, which are pairs.
    escaped = {key: json.dumps(value)[1:-1] for key, value in properties.items()}
    path.write_text("".join(f"{key}={value}\n" for key, value in escaped.items()))
    return path
