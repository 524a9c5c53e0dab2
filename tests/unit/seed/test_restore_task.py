"""Tests the settings of a restore task, which must not connect to the source."""

from pathlib import Path

import pytest

from mirrorflow_core.settings import LossPolicy, StartPosition
from mirrorflow_seed.archive.restore_task import without_source
from mirrorflow_seed.settings import FlowFiles

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
    given = files.load()
    assert given.syncs is not None
    assert (given.start, given.on_source_loss) == (StartPosition.LATEST, LossPolicy.RESTART)
    goes_by = without_source(given)
    assert (goes_by.start, goes_by.on_source_loss) == (StartPosition.EARLIEST, LossPolicy.FAIL)
    # Offset syncs that belong on the source are not written; others are.
    assert (goes_by.syncs is None) is (location == "source")
