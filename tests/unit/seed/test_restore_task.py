"""A task of a restore goes by settings of its own: the source need not be there."""

from pathlib import Path

import pytest

from mirrorflow_core.settings import LossPolicy, StartPosition
from mirrorflow_seed.archive.archive_source import Spool
from mirrorflow_seed.archive.manifest import ArchivedFile
from mirrorflow_seed.archive.restore_task import FileCopy, FileTask
from mirrorflow_seed.seed.seed_task import WaveSettings
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.verify.digests import TallyBuilder
from tests.unit.seed.test_archive_source import ORDERS, manifest

SOURCE = """name=MirrorSourceConnector
connector.class=MirrorSourceConnector
source.cluster.alias=east
target.cluster.alias=west
source.cluster.bootstrap.servers=gone:9092
target.cluster.bootstrap.servers=west:9092
topics=orders
mirrorflow.start.from=latest
mirrorflow.source.loss.policy=restart
offset-syncs.topic.location={location}
"""


@pytest.mark.parametrize("location", ["source", "target"])
def test_restore_task_sends_nothing_to_the_source(tmp_path: Path, location: str) -> None:
    worker, source = tmp_path / "worker.properties", tmp_path / "source.properties"
    worker.write_text("bootstrap.servers=west:9092\n")
    source.write_text(SOURCE.format(location=location))
    files = FlowFiles(worker=str(worker), source=str(source))
    wave = WaveSettings(files=files, group="g", initial=True, seconds=1, url="", bytes_per_second=None)
    tally = TallyBuilder("abc", ORDERS.partition).tally
    file = ArchivedFile(path="p", size_bytes=1, start=10, end=20, codec=0, tally=tally)
    given = files.load()
    assert given.syncs is not None
    assert (given.start, given.on_source_loss) == (StartPosition.LATEST, LossPolicy.RESTART)
    with Spool(start=10, end=20, codec=0) as spool:
        spool.finish()
        copying = FileCopy(
            FileTask(wave=wave, index=0, of=ORDERS, file=file, start=10, part=manifest()), spool
        )
    goes_by = copying._settings
    assert (goes_by.start, goes_by.on_source_loss) == (StartPosition.EARLIEST, LossPolicy.FAIL)
    # Offset syncs that belong on the source are not written; others are.
    assert (goes_by.syncs is None) is (location == "source")
