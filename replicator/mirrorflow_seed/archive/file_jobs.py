"""Restores archived files, each in a Spark job: several partitions at once, the files of one in order.

Guarantees: a file starts only when the previous one is completely on the target. If the target has lost its
tail, the files that hold it are restored again. A damaged file, or a partition that cannot continue, fails
the restore.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.archive.copying import FileOrder, Restored, restore_file
from mirrorflow_seed.archive.manifest import ArchivedPartition, Manifest
from mirrorflow_seed.archive.preparing import Prepared
from mirrorflow_seed.archive.progress_report import Teller
from mirrorflow_seed.archive.rows import FILE_SCHEMA
from mirrorflow_seed.archive.spot_reads import ONE_TASK_CONF
from mirrorflow_seed.errors import ArchiveDamagedError, JobFailedError
from mirrorflow_seed.location import Location
from mirrorflow_seed.report import Cost
from mirrorflow_seed.seed.chain import ChainOutcome, ChainReceipt, Order
from mirrorflow_seed.seed.task_messages import Desk
from mirrorflow_seed.session import cause_of, driver_url
from mirrorflow_seed.settings import FlowFiles

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.5
# Attempts of a file that its tasks did not finish, because a cluster was unreachable or the rate is low.
TRIES_MAX = 50
NO_END_S = 1e9  # effectively no time limit: a file is small
log = logging.getLogger("mirrorflow.restore")


class FileJobDriver:
    """Restores the files of all partitions: several partitions at once, the files of one in order."""

    def __init__(
        self,
        context: "SparkContext",
        location: Location,
        manifest: Manifest,
        prepared: Prepared,
        files: FlowFiles,
        desk: Desk,
        teller: Teller,
    ) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 the extra `seed`

        self._spark = SparkSession(context)
        for key, value in ONE_TASK_CONF.items():
            self._spark.conf.set(key, value)
        self._context = context
        self._location = location
        self._manifest = manifest
        self._names = prepared.names
        self._known = prepared.next_offsets
        self._desk = desk
        self._teller = teller
        self._order = Order(
            files=files,
            identity=prepared.identity,
            initial=prepared.initial,
            seconds=NO_END_S,
            url=driver_url(context, teller.port, desk.path),
            bytes_per_second=desk.share,
        )
        self._lock = threading.Lock()
        self.files_done = 0
        self._partitions_done = 0

    def run(self) -> None:
        """Restores all files, unless it is stopped. Raises SeedError."""
        wanted = {key: one for key, one in self._manifest.partitions.items() if key.topic in self._names}
        # Largest first, so that the last ones to start are short.
        order = sorted(wanted, key=lambda key: (-sum(one.size_bytes for one in wanted[key].files), key))
        self._teller.running(total=len(order))
        with ThreadPoolExecutor(max_workers=max(1, int(self._context.defaultParallelism))) as pool:
            futures = [
                pool.submit(self._partition, index, key, wanted[key]) for index, key in enumerate(order)
            ]
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, timeout=POLL_S)
                if any(one.exception() is not None for one in done):
                    self._desk.stop = True
                self._tell()
        for one in futures:
            one.result()

    def stop(self) -> None:
        """Stops gracefully: tasks finish what is in flight."""
        self._desk.stop = True
        log.info("stopping: tasks finish what is in flight")

    def _partition(self, index: int, key: TopicPartition, archived: ArchivedPartition) -> None:
        """Restores the files of one partition, from the first that the target may lack."""
        at, tries = self._first(key, archived), 0
        while at < len(archived.files) and not self._desk.stop:
            restored = self._file(index, key, archived, at)
            receipt = self._receipt(restored, archived.files[at].path)
            if restored.wanted_earlier is not None:
                at = max(0, at - 1)  # the target has lost its tail: restore the previous file again
            elif receipt.outcome is ChainOutcome.DONE:
                at, tries = at + 1, 0
                with self._lock:
                    self.files_done += 1
                continue
            elif receipt.outcome is ChainOutcome.FAILED:
                raise JobFailedError(f"{key} cannot be restored: {receipt.message}")
            tries += 1
            if tries > TRIES_MAX:
                raise JobFailedError(f"{key} does not get on: {receipt.message or 'its tasks end too early'}")
        with self._lock:
            self._partitions_done += not self._desk.stop

    def _first(self, key: TopicPartition, archived: ArchivedPartition) -> int:
        """Index of the file with the next offset; at most the last, as the target may have lost its tail."""
        at = self._known.get(key)
        if at is None:
            return 0
        if at > archived.end:
            return len(archived.files)  # the live connector has copied beyond the archive
        behind = sum(one.end <= at for one in archived.files)
        return min(behind, max(0, len(archived.files) - 1))

    def _file(self, index: int, key: TopicPartition, archived: ArchivedPartition, at: int) -> Restored:
        file = archived.files[at]
        topic = next(one for one in self._manifest.topics if one.name == key.topic)
        part = replace(self._manifest, topics=(replace(topic, partitions=(replace(archived, files=()),)),))
        start = archived.files[at - 1].end if at else archived.start
        task = FileOrder(order=self._order, index=index, of=key, file=file, start=start, part=part)
        rows = self._spark.read.schema(FILE_SCHEMA).parquet(self._location.uri_of(file.path)).rdd
        try:
            found: list[Restored] = rows.mapPartitions(partial(restore_file, task=task)).collect()
        except Exception as error:
            raise JobFailedError(f"{file.path} cannot be restored: {cause_of(error)}") from error
        if len(found) != 1:
            raise JobFailedError(f"{file.path} was read by {len(found)} tasks, which would lose its order.")
        return found[0]

    def _receipt(self, restored: Restored, path: str) -> ChainReceipt:
        if restored.ended is None:
            raise ArchiveDamagedError(
                location=self._location.text,
                problem=f"the records of {path} are not those of its manifest",
                action="restore a copy of it that is whole; none of that file was restored",
            )
        self._desk.hear(restored.ended.word)
        return restored.ended.receipts[0]

    def _tell(self) -> None:
        records, size_bytes, seconds = self._desk.totals
        self._teller.running(
            done=self._partitions_done,
            records=records,
            bytes=size_bytes,
            cost=Cost(executor_seconds=seconds, bytes_read=size_bytes, bytes_written=size_bytes),
        )
