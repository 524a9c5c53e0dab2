"""Spark's own Kafka source: its jars from Maven Central, and a plain job that writes a topic to Parquet with it."""

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.harness.kafka.processes import HarnessError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The newest release on Maven Central; it runs on PySpark 4.3.
RELEASE: Final = "4.2.0"
# What the source needs beyond the jars of PySpark.
ARTIFACTS: Final = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)
POM: Final = Path(__file__).with_suffix(".xml")
FOLDER: Final = Path(__file__).parents[1] / ".cache" / "benchmarks" / f"spark-kafka-source-{RELEASE}"
DOWNLOAD_S: Final = 300.0


def jars() -> list[Path]:
    """Returns the jars of the source, which Maven downloads once (10 MB). Raises HarnessError."""
    if len(list(FOLDER.glob("*.jar"))) < len(ARTIFACTS):
        command = [
            *("mvn", "-q", "-B", "--no-transfer-progress", "-f", str(POM), f"-Dspark.version={RELEASE}"),
            *("dependency:copy-dependencies", f"-DincludeArtifactIds={','.join(ARTIFACTS)}"),
            f"-DoutputDirectory={FOLDER}",
        ]
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_S)
        if finished.returncode:
            raise HarnessError(f"Maven could not fetch Spark's Kafka source: {finished.stdout[-600:]}")
    return sorted(FOLDER.glob("*.jar"))


def export(spark: "SparkSession", bootstrap: str, topic: str, folder: str, *, codec: str = "snappy") -> int:
    """Writes all records of *topic*, with headers, to Parquet files in *folder*; returns an exit status."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "includeHeaders": "true",
    }
    records = spark.read.format("kafka").options(**options).load()
    records.write.option("compression", codec).parquet(f"file://{folder}")
    return 0
