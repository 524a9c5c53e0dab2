"""A batch passes through the files that docs/architecture.md shows."""

import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from mirrorflow_core.copying.effects import NOTHING, REPORT, REPORT_AND_READY
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.write_mode import ChangeMode
from mirrorflow_replicator.copy.effect_handler import EffectHandler
from mirrorflow_replicator.copy.partition_dispatch import PartitionDispatch
from mirrorflow_replicator.copy.replay_files import ReplayFiles
from tests.unit.core.copying.stubs import begun_copier, records_of
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS, with_leader_epoch
from tests.unit.core.wire.strategies import batch_of

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "replicator"
FILES_MAX = 12
RECORDS = 3


def dispatch_of(copier: PartitionCopier) -> PartitionDispatch:
    """Returns a dispatch of *copier*, between a reader and a connection that do nothing."""
    cluster: Any = None
    routes: Any = SimpleNamespace()
    task = EffectHandler(
        source=cluster,
        target=cluster,
        routes=routes,
        syncs=None,
        errors=Counter(),
        replays=ReplayFiles(),
        on_change=lambda _: None,
        spawn=lambda _: None,
    )
    dispatch = PartitionDispatch(copier, task)
    dispatch.reader = SimpleNamespace(partition_bytes=1 << 20, changed=lambda *_: None)  # type: ignore[assignment]
    dispatch.connection = SimpleNamespace(request_bytes=1 << 20, ready=lambda _: None)  # type: ignore[assignment]
    task.now_ms = TIMESTAMP_MS
    return dispatch


def response_at(offset: int) -> PartitionFetchResponse:
    """Returns a fetch response with one batch."""
    batch = with_leader_epoch(batch_of(records_of(TIMESTAMP_MS, RECORDS), base_offset=offset), 0)
    end = offset + RECORDS
    key = FetchKey(b"orders", 2)
    return PartitionFetchResponse(key, 0, end, end, 0, (), -1, memoryview(bytearray(batch.data)))


def plain_copier() -> PartitionCopier:
    """Returns a copier that writes plain batches from source offset 100 on, while its event log is off."""
    copier = begun_copier(TIMESTAMP_MS)
    copier.change_mode(ChangeMode(WriteMode.PLAIN, 100, 0), TIMESTAMP_MS)
    copier.log.end(copier.state_values)
    return copier


def files_of_a_batch() -> set[str]:
    """Returns the product's files of which a function is called between the fetch response and the acknowledgement."""
    copier = plain_copier()
    dispatch = dispatch_of(copier)
    response = response_at(100)
    files: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCES):
            files.add(str(path.relative_to(SOURCES)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        dispatch.fetched(response, 100)
        data = dispatch.next_batch()
        dispatch.acknowledged(40, -1)
        dispatch.next_fetch()
    finally:
        sys.setprofile(before)
    assert data is not None
    assert copier.counts.records == RECORDS
    return files


def test_the_architecture_names_each_file_on_the_way_of_a_batch() -> None:
    """The number of files in the diagram is limited.

    The paragraph below it lists the files that only count or record.
    """
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("## Data path")[2].partition("What happens beside it:")[0]
    diagram = set(re.findall(r"mirrorflow_[a-z_/]+\.py", section.split("```")[1]))
    named = {
        name.replace("copy/", "mirrorflow_replicator/copy/") if name.startswith("copy/") else name
        for name in re.findall(r"[a-z_]+(?:/[a-z_]+)*\.py", section)
    }

    assert len(diagram) <= FILES_MAX
    assert files_of_a_batch() - named == set()


def test_the_effects_of_a_usual_batch_are_constants() -> None:
    """Constants are not allocated for each batch."""
    copier = plain_copier()

    fetched = copier.fetched(response_at(100), 100)
    _, sent = copier.next_batch(TIMESTAMP_MS, 1 << 20)
    acknowledged = copier.acknowledged(40, -1, TIMESTAMP_MS)

    assert fetched is REPORT_AND_READY
    assert sent is NOTHING
    assert acknowledged is REPORT
