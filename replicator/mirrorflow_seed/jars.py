"""Selects the jars of PySpark that the image `seed` contains: 204 of 422 MB.

    python3 jars.py .../site-packages/pyspark /opt/spark

The Dockerfile runs this file alone, so it imports only the standard library. The list has the jars that the class
loaders of real jobs requested: a driver and an executor on Kubernetes, an RDD of Python tasks, and a DataFrame
that is written to Parquet, read, filtered, sorted and counted. It leaves out Hive, Derby, DataNucleus (no
metastore), RocksDB (streaming state), MLlib and its algebra, Spark Connect, the Scala compiler and its shell, YARN,
ZooKeeper, Jersey (the UI is off) and native libraries of other systems. Tests check the list against a new release of Spark: each name resolves, and the end-to-end
tests run with these jars only.
"""

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

# The scheduler, RPC and its authentication, and Python tasks; Spark needs Hadoop for files and users.
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
# Executors as pods. fabric8's client loads all models it finds, and needs most of them to load itself.
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
# DataFrames and Parquet, for verify and the archive. ORC and Arrow are not used, but must be loadable.
DATAFRAMES: Final = """
    antlr4-runtime arrow-vector avro commons-compiler datasketches-java icu4j janino jts-core orc-mapreduce
    parquet-column parquet-common parquet-encoding parquet-format-structures parquet-hadoop parquet-jackson
    snappy-java spark-catalyst spark-sql spark-sql-api spark-variant
"""
WANTED: Final = frozenset(f"{CORE} {KUBERNETES} {DATAFRAMES}".split())
# Name, Scala release and version of a jar: spark-core_2.13-4.3.0.jar.
FILE: Final = re.compile(r"(?P<name>.+?)(_2\.\d+)?-(?P<version>\d+(\.\d+)+(-\d+)?([.-][A-Za-z][\w-]*)?)\.jar")
COMMANDS: Final = ("spark-submit", "spark-class", "find-spark-home", "load-spark-env.sh")
# Folders of the Python package that no job here imports.
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


# Folders of pyarrow that are not for running it: 14 of 170 MB. Its libraries need each other.
UNUSED_PYARROW: Final = ("include", "src", "tests")


def name_of(file: str) -> str:
    """Returns the name of a jar without Scala release and version; *file* itself if it has no version."""
    match = FILE.fullmatch(file)
    return match["name"] if match else file


def kept(files: Iterable[str]) -> list[str]:
    """Returns the *files* that the image contains, sorted. Raises LookupError if a required jar is missing."""
    names = {file: name_of(file) for file in files}
    missing = WANTED - set(names.values())
    if missing:
        raise LookupError(f"PySpark has no such jars: {', '.join(sorted(missing))}")
    return sorted(file for file, name in names.items() if name in WANTED)


def split(package: Path, home: Path) -> None:
    """Moves the Java part of *package* to *home*, a SPARK_HOME; deletes unused Python folders, also of pyarrow beside it."""
    (home / "jars").mkdir(parents=True)
    (home / "bin").mkdir()
    for file in kept(path.name for path in (package / "jars").iterdir()):
        (package / "jars" / file).rename(home / "jars" / file)
    for command in COMMANDS:
        (package / "bin" / command).rename(home / "bin" / command)
    for folder in UNUSED_PYTHON:
        shutil.rmtree(package / folder, ignore_errors=True)
    for folder in UNUSED_PYARROW:
        shutil.rmtree(package.parent / "pyarrow" / folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> None:
    """Runs `split`; *arguments* are PACKAGE and HOME."""
    package, home = arguments
    split(Path(package), Path(home))


if __name__ == "__main__":
    main(sys.argv[1:])
