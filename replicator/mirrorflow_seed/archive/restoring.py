"""The driver of a restore: checks the archive, prepares the target, copies file after file and compares.

    manifest and files ──> topics, identity ──> for each partition its files, one Spark job after the other ──> compare

Guarantees: it writes nothing from an archive without a manifest, or whose files differ from the manifest.
After a kill, the next start continues from the target's state. The target has each record once.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mirrorflow_seed.archive.copying import without_source
from mirrorflow_seed.archive.file_jobs import FileJobDriver
from mirrorflow_seed.archive.manifest import (
    CLAIM_NAME,
    MANIFEST_NAME,
    Manifest,
    decode,
    differences,
)
from mirrorflow_seed.archive.preparing import Restoration
from mirrorflow_seed.archive.progress_report import Teller
from mirrorflow_seed.archive.restore_check import compare
from mirrorflow_seed.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    ArchiveDamagedError,
    ArchiveIncompleteError,
)
from mirrorflow_seed.location import Location
from mirrorflow_seed.outlet import Display
from mirrorflow_seed.seed.retention_holder import Keeping
from mirrorflow_seed.seed.task_messages import Desk
from mirrorflow_seed.session import session_of
from mirrorflow_seed.settings import (
    FlowFiles,
    JobSettings,
    flag_of,
    require_archive,
    require_shared_positions,
)

if TYPE_CHECKING:
    from pyspark import SparkContext

NAMED_MAX = 5  # files in an error
COMPARE_KEY = "archive.compare"  # false: skip the comparison


def run(
    files: FlowFiles, job: JobSettings, *, display: Display | None = None, spark: "SparkContext | None" = None
) -> int:
    """Restores the target from `archive` and returns the exit status. Raises SeedError, MirrorFlowError."""
    settings = without_source(files.load())
    folder, compares = require_archive(job), flag_of(job.extra, COMPARE_KEY, default=True)
    require_shared_positions(settings)
    desk = Desk(bytes_per_second=job.bytes_per_second or settings.bytes_per_second)
    with (
        Teller("restore", job.run_id, display, orders=desk) as teller,
        session_of(job, f"mirrorflow-restore-{job.run_id}", spark, light=False) as context,
    ):
        location = Location(context, folder)
        restoration = Restoration(settings=settings, manifest=read_manifest(location), location=location.text)
        return asyncio.run(
            _restore(context, restoration, location, files, job, desk, teller, compares=compares)
        )


async def _restore(
    context: "SparkContext",
    restoration: Restoration,
    location: Location,
    files: FlowFiles,
    job: JobSettings,
    desk: Desk,
    teller: Teller,
    *,
    compares: bool,
) -> int:
    survey = await restoration.open()
    try:
        prepared = await restoration.prepare(survey, accept_foreign=job.accept_foreign)
        driver = FileJobDriver(context, location, restoration.manifest, prepared, files, desk, teller)
        keeping = Keeping(survey, follows=False)
        await keeping.begin(prepared.names, restoration.shares(prepared))
        with _signals(driver.stop):
            try:
                await asyncio.to_thread(driver.run)
            finally:
                await keeping.end()
        if desk.stop:
            teller.stopped("Stopped cleanly; the next start resumes.")
            return EXIT_STOPPED
        message = f"{driver.files_done} files are restored."
        if compares:
            decisions = await survey.decisions.read()
            compared = await asyncio.to_thread(
                compare, context, restoration.manifest, prepared.names, decisions, files
            )
            message += f" {compared.sentence}"
            if compared.different:
                teller.failed(message)
                return EXIT_FAILED
        teller.ended(message=message)
        return EXIT_DONE
    finally:
        await survey.close()


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls *stop* on SIGTERM and Ctrl-C, so that tasks end gracefully; restores the handlers at the end."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def read_manifest(location: Location) -> Manifest:
    """Returns the manifest of a complete archive. Raises ArchiveIncompleteError, ArchiveDamagedError."""
    text = location.read(MANIFEST_NAME)
    if text is None:
        is_begun = location.read(CLAIM_NAME) is not None
        raise ArchiveIncompleteError(
            location=location.text,
            problem="the export was not finished" if is_begun else "there is no archive: it has no manifest",
            action="run the export again to its end" if is_begun else "name the folder that was exported to",
        )
    manifest = decode(text, location=location.text)
    wrong = list(differences(manifest, location.data()))
    if wrong:
        more = f" and {len(wrong) - NAMED_MAX} more" if len(wrong) > NAMED_MAX else ""
        raise ArchiveDamagedError(
            location=location.text,
            problem="its files are not those of its manifest: " + "; ".join(wrong[:NAMED_MAX]) + more,
            action="restore a copy of it that is whole",
        )
    return manifest
