"""Runs the tasks of a job on a Spark session, classic or Spark Connect, as a DataFrame.

    range(n), one row in each of n partitions ──> a Python UDF runs task n ──> its result, one row

So each input is one task, and no record passes through the JVM. Only `run_shuffled` shuffles: digests of records. A UDF is what every Spark has;
`SparkContext` is missing on Spark Connect and on serverless platforms. The inputs are part of the UDF, as Spark's
broadcast where they are large.

Spark cancels tasks (`cancel`): it kills their processes within two seconds.
"""

import atexit
import pickle
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.spark_session import is_connect, runs_here

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
# Rows enough to have some in each partition that Spark makes by default, whose number is counted with Spark Connect.
_COUNTED_ROWS: Final = 1 << 16
WATCH_S: Final = 0.5
# The part of a rate that tasks share evenly: sizes are estimates, and a task that is far larger must not crawl.
EVEN_PERCENT: Final = 5
NO_TASK_S: Final = 20.0  # without a running task, the reason is reported; Spark logs its own after 15 s
NO_TASK: Final = "Spark runs no task: no resources were accepted; check that executors start, reach spark.driver.host, and have free cores and memory."


class SparkTasks:
    """The tasks of one job on *spark*."""

    def __init__(self, spark: "SparkSession") -> None:
        # In a classic session, only a session of its own can be cancelled without other jobs of the user.
        self._session = spark if is_connect(spark) else spark.newSession()
        self._tag = f"mirrorflow-{secrets.token_hex(8)}"
        self._slots: int | None = None

    @property
    def slots(self) -> int:
        """The number of tasks that Spark runs at once, as far as its executors have started."""
        if not is_connect(self._session):
            return max(1, int(self._session.sparkContext.defaultParallelism))
        if self._slots is None:
            from pyspark.sql.functions import spark_partition_id  # noqa: PLC0415 the extra `seed`

            counted = self._session.range(_COUNTED_ROWS).select(spark_partition_id().alias("partition"))
            self._slots = max(1, int(counted.distinct().count()))
        return self._slots

    def run(self, work: Callable[[T], R], inputs: Sequence[T]) -> list[R]:
        """Runs *work* on each of *inputs*, each in one task, and returns all results; blocks.

        `cancel`, from another thread, ends it. Raises Spark's error (`spark_errors.cause_of`).
        """
        from pyspark.sql.functions import udf  # noqa: PLC0415 the extra `seed`

        packed = [pickle.dumps(task_input) for task_input in inputs]

        def run_task(number: int) -> bytes:
            return pickle.dumps(work(pickle.loads(packed[number])))  # noqa: S301 made above

        if not packed:
            return []
        task = udf(run_task, "binary", useArrow=False).asNondeterministic()
        if is_connect(self._session):
            self._session.addTag(self._tag)  # of this thread
        numbers = self._session.range(0, len(packed), 1, len(packed))
        rows = numbers.select(task("id").alias("result")).collect()
        return [pickle.loads(bytes(row["result"])) for row in rows]  # noqa: S301 of our own tasks

    def run_shuffled(
        self,
        read: "Callable[[T], Iterator[RecordBatch]]",
        inputs: Sequence[T],
        schema: str,
        *,
        keys: Sequence[str],
        order: Sequence[str],
        partitions: int,
        combine: "Callable[[Iterator[RecordBatch]], Iterator[R]]",
    ) -> list[R]:
        """Runs *read* on each of *inputs*, each in one task, and *combine* on the sorted rows; returns all results; blocks.

        Rows have *schema* (Spark's DDL). Those with equal *keys* reach the same of *partitions* tasks, sorted by *keys* and
        *order*; Spark spills what does not fit its memory. `cancel`, from another thread, ends it. Raises Spark's error.
        """
        packed = [pickle.dumps(item) for item in inputs]

        def read_task(numbers: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from read(pickle.loads(packed[number]))  # noqa: S301 made above

        def combine_task(rows: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
            import pyarrow as pa  # noqa: PLC0415 the extra `seed`

            for result in combine(rows):
                yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

        if not packed:
            return []
        if is_connect(self._session):
            self._session.addTag(self._tag)  # of this thread
        numbers = self._session.range(0, len(packed), 1, len(packed))
        shuffled = _map_in_arrow(numbers, read_task, schema).repartition(partitions, *keys)
        combined = _map_in_arrow(shuffled.sortWithinPartitions(*keys, *order), combine_task, "result binary")
        return [pickle.loads(bytes(row["result"])) for row in combined.collect()]  # noqa: S301 of our own tasks

    def cancel(self) -> None:
        """Cancels all running tasks of this job."""
        if is_connect(self._session):
            self._session.interruptTag(self._tag)
        else:
            self._session.interruptAll()

    @property
    def is_idle(self) -> bool:
        """Whether Spark has work but no task runs; False where that is unknown."""
        if is_connect(self._session):
            return False
        tracker: Any = self._session.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known_stages = [stage for stage in stages if stage is not None]
        return bool(known_stages) and not any(stage.numActiveTasks for stage in known_stages)


def _map_in_arrow(
    rows: Any, work: "Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]", schema: str
) -> Any:
    """Returns `rows.mapInArrow(work, schema)`, also without pandas.

    The method of a classic DataFrame refuses to run without pandas, and uses nothing of it. Spark Connect has it anyway.
    """
    if is_connect(rows.sparkSession):
        return rows.mapInArrow(work, schema)
    from pyspark.sql import DataFrame  # noqa: PLC0415 the extra `seed`
    from pyspark.sql.udf import UserDefinedFunction  # noqa: PLC0415
    from pyspark.util import PythonEvalType  # noqa: PLC0415

    function = UserDefinedFunction(work, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = function(*(rows[name] for name in rows.columns))
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)  # noqa: SLF001


class IdleTimer:
    """Measures for how long Spark has run no task."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s

    def problem(self, *, is_idle: bool, now_s: float) -> str:
        """Returns the sentence to report; "" while tasks run."""
        if not is_idle:
            self._since_s = now_s
        return NO_TASK if now_s - self._since_s >= NO_TASK_S else ""


def run_watched(
    tasks: SparkTasks, work: Callable[[T], R], inputs: Sequence[T], watch: Callable[[str], None]
) -> list[R]:
    """Runs tasks as `SparkTasks.run`, watched as by `watch_job`."""
    return watch_job(tasks, lambda: tasks.run(work, inputs), watch)


def watch_job(tasks: SparkTasks, job: Callable[[], R], watch: Callable[[str], None]) -> R:
    """Returns what *job*, a method of *tasks*, returns, and calls *watch* meanwhile with a problem of Spark, "" without one.

    A signal that raises an exception cancels the tasks.
    """
    outcome: list[R] = []
    failure: list[BaseException] = []

    def collect() -> None:
        try:
            outcome.append(job())
        except BaseException as error:  # noqa: BLE001 handed over to the thread that waits
            failure.append(error)

    thread = threading.Thread(target=collect, name="spark-job", daemon=True)
    thread.start()
    idle_timer = IdleTimer(time.monotonic())
    try:
        while thread.is_alive():
            thread.join(WATCH_S)
            watch(idle_timer.problem(is_idle=tasks.is_idle, now_s=time.monotonic()))
    except BaseException:
        tasks.cancel()
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def rates_of_tasks(bytes_per_second: int | None, sizes: Sequence[int]) -> list[int | None]:
    """Divides the rate of a job among tasks that run at once, by their *sizes*; None without a limit.

    So all tasks end at about the same time, and the job keeps its rate until then, however unequal its partitions are.
    """
    if bytes_per_second is None:
        return [None] * len(sizes)
    count, total = len(sizes), sum(sizes)
    if not total:
        return [max(1, bytes_per_second // count)] * count
    by_size = bytes_per_second * (100 - EVEN_PERCENT)
    evenly = bytes_per_second * EVEN_PERCENT // count
    return [max(1, (by_size * size // total + evenly) // 100) for size in sizes]


def share_files(spark: "SparkSession", files: FlowFiles, *, are_mounted: bool) -> FlowFiles:
    """Returns *files* as tasks find them: files of the session, unless tasks have the same file system.

    *are_mounted*: executors have the files at the same paths. Raises JobSettingError if a file has a secret in plain text.
    """
    if are_mounted or runs_here(spark):
        return files
    if secret := files.plain_secrets():
        raise JobSettingError(
            key=", ".join(secret),
            problem="in plain text, and the files of the flow reach executors through Spark",
            action="write references that each executor resolves, such as ${env:NAME} or ${file:/path:key} (docs/seeding.md)",
        )
    prefix = f"mirrorflow-{secrets.token_hex(8)}"
    shared = FlowFiles(
        worker=f"{prefix}-worker.properties", source=f"{prefix}-source.properties", is_shared=True
    )
    # A driver serves a file from its path for as long as its session lives, also to executors that start later.
    folder = Path(tempfile.mkdtemp(prefix="mirrorflow-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path, name in ((files.worker, shared.worker), (files.source, shared.source)):
        copy = folder / name
        shutil.copyfile(path, copy)
        spark.addArtifacts(str(copy), file=True)
    return shared
