"""Tests that the settings of a restore task need no connection to the source."""

from pathlib import Path

import pytest

from mirrorflow_core.settings import LossPolicy, StartPosition
from mirrorflow_seed.archive.restore_task import with_offset_map, without_source
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
def test_a_restore_task_writes_no_syncs_to_the_source_and_starts_at_the_beginning(
    tmp_path: Path, location: str
) -> None:
    worker, source = tmp_path / "worker.properties", tmp_path / "source.properties"
    worker.write_text("bootstrap.servers=west:9092\n")
    source.write_text(SOURCE.format(location=location))
    files = FlowFiles(worker=str(worker), source=str(source))
    flow_settings = files.load()
    assert flow_settings.syncs is not None
    assert (flow_settings.start, flow_settings.on_source_loss) == (StartPosition.LATEST, LossPolicy.RESTART)
    task_settings = without_source(flow_settings)
    assert (task_settings.start, task_settings.on_source_loss) == (StartPosition.EARLIEST, LossPolicy.FAIL)
    # Offset syncs are written only if their topic is on the target.
    assert (task_settings.syncs is None) is (location == "source")
    # Without them, the offset map alone is kept, on the target.
    mapped = with_offset_map(task_settings)
    assert mapped.syncs is not None
    assert (mapped.syncs.only_map, mapped.syncs.on_source) == (location == "source", False)
