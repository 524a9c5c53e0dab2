"""`format("mirrorflow")` on real Spark and real brokers.

Tables and streams have the records that a Java consumer reads.
"""

import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorflow_core.wire.records import Record as WireRecord
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import Child, start, wait_until
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import Flow, write_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]
KILLS = 20
HELD_EVERY = 4
# Spark gives a Python process ten seconds to start, which is not enough on a busy machine. Then the stream is started
# again.
STARTS_MAX = 10
NOT_STARTED = "Python worker failed to connect back"
T0 = time.time_ns() // 1_000_000 - 3_600_000
# Reads a topic as a stream into Parquet files. `availableNow` ends the stream.
STREAM = """
import sys
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.tables.topic_table import register

bootstrap, topic, folder = sys.argv[1:]
with spark_session(job_of({"master": "local[2]"}), "stream", light=False) as spark:
    register(spark)
    table = (
        spark.readStream.format("mirrorflow").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "500").load()
    )
    query = (
        table.writeStream.format("parquet").option("path", folder + "/table")
        .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
    )
    query.awaitTermination()
"""

# Reads a topic as a stream into an Iceberg table, as docs/spark-table.md shows. PyIceberg appends a batch unless the
# table already has its number. While the file "hold" exists, the stream waits between the commits of Iceberg and of
# Spark.
ICEBERG_STREAM = """
import sys
import time
from pathlib import Path
from pyiceberg.catalog.sql import SqlCatalog
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.spark_session import spark_session
from mirrorflow_seed.tables.topic_table import register

bootstrap, topic, folder = sys.argv[1:]
catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/lake.db", warehouse=f"file://{folder}/table")
catalog.create_namespace_if_not_exists("lake")

def append(batch, number):
    rows = batch.select("partition", "offset", "value").toArrow()
    table = catalog.create_table_if_not_exists("lake.records", schema=rows.schema)
    newest = table.current_snapshot()
    if newest is None or number > int(newest.summary["batch"]):
        table.append(rows, snapshot_properties={"batch": str(number)})
    else:
        Path(folder, f"repeated-{number}").touch()
    if Path(folder, "hold").exists():
        Path(folder, "held").touch()
        time.sleep(600)

with spark_session(job_of({"master": "local[2]"}), "stream", light=False) as spark:
    register(spark)
    table = (
        spark.readStream.format("mirrorflow").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "500").load()
    )
    query = (
        table.writeStream.foreachBatch(append).option("checkpointLocation", folder + "/checkpoint")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
"""


def table_of(spark: "SparkSession", cluster: KafkaCluster, **options: str) -> "DataFrame":
    from mirrorflow_seed.tables.topic_table import register

    register(spark)
    return (
        spark.read.format("mirrorflow")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .options(**options)
        .load()
    )


def rows_of(table: "DataFrame") -> list[Any]:
    """Returns what a consumer receives of each record, sorted."""
    return sorted(
        (
            row.topic,
            row.partition,
            row.offset,
            round(row.timestamp.timestamp() * 1_000),
            row.key and bytes(row.key),
            row.value and bytes(row.value),
            [(header.key, header.value and bytes(header.value)) for header in row.headers],
        )
        for row in table.collect()
    )


def consumed(cluster: KafkaCluster, *topics: str) -> list[Any]:
    """Returns the same data as `rows_of`, read by a Java consumer."""
    return sorted(
        (
            topic,
            record.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            list(record.headers),
        )
        for topic in topics
        for record in records(cluster, topic)
    )


def test_a_table_has_the_records_that_a_consumer_reads(
    flow: Flow, spark: "SparkSession", unique_topic: Names
) -> None:
    stem = unique_topic()
    first, second = f"{stem}-a", f"{stem}-b"
    flow.source.create_topic(first, partitions=3)
    flow.source.create_topic(second)
    load(flow.source, first, 3_000, size_bytes=100, keys=50, headers=2, codec="lz4")
    write_batches(flow.source, second, [[WireRecord(0, T0, None, b""), WireRecord(0, T0 + 1, b"k", None)]])

    table = table_of(spark, flow.source, subscribePattern=f"{stem}-.*", maxRecordsPerPartition="400")

    assert rows_of(table) == consumed(flow.source, first, second)
    assert table.rdd.getNumPartitions() >= 3_000 / 400


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_pushed_down_conditions_return_the_results_of_spark_sql(
    flow: Flow, spark: "SparkSession", unique_topic: Names, zone: str
) -> None:
    """Timestamps are not in order. A time condition reduces what is read, and Spark filters the rest."""
    stem = unique_topic()
    first, second = f"{stem}-a", f"{stem}-b"
    for name in (first, second):
        flow.source.create_topic(name, partitions=2)
        for partition in range(2):
            batches = [
                [
                    WireRecord(0, T0 + 1_000 * (batch * 10 + (7 * number) % 30), b"k", b"%d" % number)
                    for number in range(10)
                ]
                for batch in range(40)
            ]
            write_batches(flow.source, name, batches, partition=partition)
    table = table_of(spark, flow.source, subscribe=f"{first},{second}", maxRecordsPerPartition="100").select(
        "topic", "partition", "offset", "timestamp"
    )
    everything = [tuple(row) for row in table.collect()]
    assert len(everything) == 1_600
    timestamp = datetime.fromtimestamp((T0 + 200_000) / 1_000, UTC)
    until = datetime.fromtimestamp((T0 + 230_000) / 1_000, UTC)
    spark.conf.set("spark.sql.session.timeZone", zone)

    def naive(moment: datetime) -> datetime:
        return moment.astimezone().replace(tzinfo=None)

    conditions = {
        f"topic = '{first}'": (lambda row: row[0] == first, 8),
        f"topic IN ('{second}', 'other') AND partition = 1": (
            lambda row: row[0] == second and row[1] == 1,
            4,
        ),
        "offset >= 150 AND offset < 250": (lambda row: 150 <= row[2] < 250, 4),
        "partition > 0 AND offset <= 5": (lambda row: row[1] > 0 and row[2] <= 5, 2),
        f"timestamp >= TIMESTAMP '{timestamp:%Y-%m-%d %H:%M:%S.%f}+00:00'": (
            lambda row: row[3] >= naive(timestamp),
            12,
        ),
        f"timestamp BETWEEN TIMESTAMP '{timestamp:%Y-%m-%d %H:%M:%S.%f}Z' AND TIMESTAMP '{until:%Y-%m-%d %H:%M:%S.%f}Z'": (
            lambda row: naive(timestamp) <= row[3] <= naive(until),
            12,
        ),
        "offset < 0": (lambda _: False, 0),
    }
    try:
        for condition, (holds, tasks_max) in conditions.items():
            rows = table.where(condition)
            expected = sorted(row for row in everything if holds(row))
            assert sorted(tuple(row) for row in rows.collect()) == expected, condition
            assert rows.rdd.getNumPartitions() <= max(1, tasks_max), condition
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_a_committed_table_has_no_aborted_records(
    flow: Flow, spark: "SparkSession", unique_topic: Names
) -> None:
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 1_000, keys=True, transactional_id=topic, abort_every=3, transaction_records=50)

    table = table_of(spark, flow.source, subscribe=topic, **{"kafka.isolation.level": "read_committed"})

    expected = [record.offset for record in records(flow.source, topic, isolation="read_committed")]
    assert 0 < len(expected) < 1_000
    assert sorted(row.offset for row in table.select("offset").collect()) == sorted(expected)


def test_a_stream_that_was_stopped_continues_and_new_partitions_are_read(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 700, size_bytes=50)
    run_stream(spark, flow.source, topic, tmp_path, maxOffsetsPerTrigger="300")
    assert written(spark, tmp_path) == offsets_of(flow.source, topic)
    flow.source.add_partitions(topic, 3)
    load(flow.source, topic, 900, size_bytes=50)

    batches = run_stream(spark, flow.source, topic, tmp_path, maxOffsetsPerTrigger="300")

    assert written(spark, tmp_path) == offsets_of(flow.source, topic)
    assert batches >= 3


def test_a_stream_whose_records_are_lost_fails_and_names_them(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 100)
    run_stream(spark, flow.source, topic, tmp_path)
    load(flow.source, topic, 100)
    flow.source.delete_records(topic, {0: 150})

    with pytest.raises(Exception, match="records are lost"):
        run_stream(spark, flow.source, topic, tmp_path)
    run_stream(spark, flow.source, topic, tmp_path, failOnDataLoss="false")

    assert written(spark, tmp_path) == [(0, offset) for offset in (*range(100), *range(150, 200))]


@pytest.mark.faults
@pytest.mark.timeout(2_400)
def test_a_stream_that_is_killed_repeatedly_writes_each_record_once(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The driver and its JVM are killed with kill -9 at random moments while records arrive."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    (tmp_path / "stream.py").write_text(STREAM)

    kill_and_finish(flow.source, topic, tmp_path)

    assert written(spark, tmp_path) == offsets_of(flow.source, topic)


@pytest.mark.faults
@pytest.mark.timeout(2_400)
def test_a_stream_into_iceberg_that_is_killed_repeatedly_writes_each_record_once(
    flow: Flow, unique_topic: Names, tmp_path: Path
) -> None:
    """Each fourth kill is between the commits of Iceberg and of Spark. Spark then repeats the batch."""
    from pyiceberg.catalog.sql import SqlCatalog

    topic = flow.source.create_topic(unique_topic(), partitions=2)
    (tmp_path / "stream.py").write_text(ICEBERG_STREAM)
    (tmp_path / "table").mkdir()

    kill_and_finish(flow.source, topic, tmp_path, held_every=HELD_EVERY)

    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/table")
    try:
        rows = catalog.load_table("lake.records").scan().to_arrow().to_pylist()
    finally:
        catalog.engine.dispose()
    assert sorted((row["partition"], row["offset"]) for row in rows) == offsets_of(flow.source, topic)
    assert len(list(tmp_path.glob("repeated-*"))) >= KILLS // HELD_EVERY


def kill_and_finish(
    cluster: KafkaCluster, topic: str, folder: Path, *, held_every: int | None = None
) -> None:
    """Starts `stream.py` of *folder* and kills it, KILLS times, while records arrive. Then runs it to its end.

    Each *held_every*-th kill is while the stream waits between two commits.
    """
    chance = random.Random(20)
    hold, held = folder / "hold", folder / "held"
    for number in range(KILLS):
        load(cluster, topic, 2_000, size_bytes=100)
        is_held = held_every is not None and number % held_every == 0
        if is_held:
            hold.touch()
        process = start_stream(cluster, topic, folder, number)
        before = commits(folder)
        try:
            if is_held:
                wait_until("the stream waits between two commits", held.exists)
            else:
                # Starting the JVM takes longer than copying. So the random time before the kill begins at the first write.
                wait_until(
                    "the stream writes a batch, or ends",
                    partial(has_committed, folder, before, process),
                )
                time.sleep(chance.uniform(0, 1.5))
        finally:
            process.kill()
            hold.unlink(missing_ok=True)
            held.unlink(missing_ok=True)
    for number in range(KILLS, KILLS + STARTS_MAX):
        last = start_stream(cluster, topic, folder, number)
        wait_until("the stream ends", partial(has_ended, last))
        if last.process.returncode == 0 or NOT_STARTED not in last.tail():
            break
    assert last.process.returncode == 0, last.tail()


def start_stream(cluster: KafkaCluster, topic: str, folder: Path, number: int) -> Child:
    command = [sys.executable, str(folder / "stream.py"), cluster.bootstrap, topic, str(folder)]
    return start("stream", command, log=folder / f"stream-{number}.log")


def has_ended(process: Child) -> bool:
    return not process.running


def has_committed(folder: Path, before: int, process: Child) -> bool:
    return commits(folder) > before or not process.running


def commits(folder: Path) -> int:
    """Returns the number of batches that Spark has committed."""
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def run_stream(spark: "SparkSession", cluster: KafkaCluster, topic: str, folder: Path, **options: str) -> int:
    """Reads the topic with `availableNow` into a table of Parquet files, and returns the number of batches."""
    from pyspark.errors import StreamingQueryException

    from mirrorflow_seed.tables.topic_table import register

    register(spark)
    before = commits(folder)
    stream = (
        spark.readStream.format("mirrorflow")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    for number in range(1, STARTS_MAX + 1):
        try:
            stream.start().awaitTermination()
            break
        except StreamingQueryException as error:
            if NOT_STARTED not in str(error) or number == STARTS_MAX:
                raise
    return commits(folder) - before


def written(spark: "SparkSession", folder: Path) -> list[tuple[int, int]]:
    """Returns partition and offset of each record that the stream has written, sorted and including repeated ones."""
    table = spark.read.parquet(str(folder / "table"))
    return sorted((row["partition"], row["offset"]) for row in table.select("partition", "offset").collect())


def offsets_of(cluster: KafkaCluster, topic: str) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records(cluster, topic))
