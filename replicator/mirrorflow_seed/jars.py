"""Which of PySpark's jars the image `seed` carries: 190 of 462 MB.

    python3 jars.py .../site-packages/pyspark /opt/spark      (in the Dockerfile: nothing else is imported here)

What is listed is what the class loaders of real jobs have asked for: a driver and an executor on Kubernetes, an RDD of
Python tasks, and a DataFrame that is written to Parquet, read, filtered, sorted and counted. What is left out: Hive, Derby,
DataNucleus (no metastore), RocksDB (state of streams), MLlib and its algebra, Spark Connect, the Scala compiler and its
shell, YARN, ZooKeeper, Jersey (the UI is off), natives of other systems. A new release of Spark is held to the list by
tests: each name resolves, and the end-to-end tests run what is left.
"""

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

# The scheduler, RPC, its authentication, the Python tasks; Hadoop is Spark's idea of files and of users.
CORE: Final = """
    chill commons-codec commons-collections4 commons-crypto commons-io commons-lang3 commons-text
    hadoop-client-api hadoop-client-runtime ivy jackson-annotations jackson-core jackson-databind jackson-dataformat-yaml
    jackson-datatype-jsr310 jackson-module-scala jakarta.servlet-api jakarta.ws.rs-api javax.servlet-api
    json4s-ast json4s-core json4s-jackson json4s-jackson-core jul-to-slf4j kryo-shaded log4j-1.2-api log4j-api
    log4j-core log4j-layout-template-json log4j-slf4j2-impl lz4-java metrics-core metrics-json metrics-jvm
    minlog objenesis paranamer pickle py4j RoaringBitmap scala-library scala-reflect scala-xml slf4j-api snakeyaml-engine
    spark-common-utils spark-common-utils-java spark-config spark-core spark-kvstore spark-launcher
    spark-network-common spark-network-shuffle spark-tags spark-udf-worker-core spark-unsafe stream tink
    xbean-asm9-shaded zstd-jni
    netty-buffer netty-codec-base netty-common netty-handler netty-resolver netty-transport
    netty-transport-classes-epoll netty-transport-native-unix-common
"""
# Executors as pods. fabric8's client loads every model that it finds, and needs most of them to load itself.
KUBERNETES: Final = """
    kubernetes-client kubernetes-client-api kubernetes-httpclient-vertx kubernetes-model-admissionregistration
    kubernetes-model-apiextensions kubernetes-model-apps kubernetes-model-autoscaling kubernetes-model-batch
    kubernetes-model-certificates kubernetes-model-common kubernetes-model-coordination kubernetes-model-core
    kubernetes-model-discovery kubernetes-model-events kubernetes-model-extensions kubernetes-model-flowcontrol
    kubernetes-model-gatewayapi kubernetes-model-metrics kubernetes-model-networking kubernetes-model-node
    kubernetes-model-policy kubernetes-model-rbac kubernetes-model-resource kubernetes-model-scheduling
    kubernetes-model-storageclass netty-codec-http netty-codec-http2 netty-handler-proxy spark-kubernetes
    vertx-core vertx-web-client
"""
# DataFrames and Parquet: what verify and the archive write. ORC and Arrow are only looked for, but then must be there.
DATAFRAMES: Final = """
    antlr4-runtime arrow-vector avro commons-compiler datasketches-java icu4j janino jts-core orc-mapreduce
    parquet-column parquet-common parquet-encoding parquet-format-structures parquet-hadoop parquet-jackson
    snappy-java spark-catalyst spark-sql spark-sql-api spark-variant
"""
WANTED: Final = frozenset(f"{CORE} {KUBERNETES} {DATAFRAMES}".split())
# A jar's name, the Scala release it is built for, its version: spark-core_2.13-4.3.0.jar.
FILE: Final = re.compile(r"(?P<name>.+?)(_2\.\d+)?-(?P<version>\d+(\.\d+)+(-\d+)?([.-][A-Za-z][\w-]*)?)\.jar")
COMMANDS: Final = ("spark-submit", "spark-class", "find-spark-home", "load-spark-env.sh")
# Of the package's Python half: what no job here imports.
UNUSED_PYTHON: Final = (
    "bin",
    "data",
    "examples",
    "jars",
    "ml",
    "mllib",
    "pandas",
    "pipelines",
    "python",
    "sbin",
)


def name_of(file: str) -> str:
    """The name of a jar without Scala's release and its own version; the file's own where it has none."""
    found = FILE.fullmatch(file)
    return found["name"] if found else file


def kept(files: Iterable[str]) -> list[str]:
    """Those of *files* that the image carries, sorted. Raises LookupError that names what is wanted and not there."""
    found = {file: name_of(file) for file in files}
    missing = WANTED - set(found.values())
    if missing:
        raise LookupError(f"PySpark has no such jars: {', '.join(sorted(missing))}")
    return sorted(file for file, name in found.items() if name in WANTED)


def split(package: Path, home: Path) -> None:
    """Moves the Java half of the installed *package* to *home*, a SPARK_HOME, and drops what is not needed."""
    (home / "jars").mkdir(parents=True)
    (home / "bin").mkdir()
    for file in kept(path.name for path in (package / "jars").iterdir()):
        (package / "jars" / file).rename(home / "jars" / file)
    for command in COMMANDS:
        (package / "bin" / command).rename(home / "bin" / command)
    for folder in UNUSED_PYTHON:
        shutil.rmtree(package / folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> None:
    """PACKAGE HOME."""
    package, home = arguments
    split(Path(package), Path(home))


if __name__ == "__main__":
    main(sys.argv[1:])
