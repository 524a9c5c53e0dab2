"""The pages of an internal topic that has more records than one page reads, from a real broker."""

import asyncio
import uuid
from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from mirrorflow_cli import internal_topic_reader
from mirrorflow_cli.flow_arguments import flows_from, layout_from, valid_plans
from mirrorflow_cli.internal_topic_reader import FileFlowTopics
from mirrorflow_console.internal_topics import Cursor, InternalTopic
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.integration.console.test_pages import FLOW

RECORDS, LATER = 600, 150
READ_MAX = 90  # in place of 20,000


@pytest.mark.more
def test_pages_reach_each_record_once_the_newest_first(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Records arrive meanwhile: they move no page. Only one of the partitions has the last records before that."""
    alias = f"e{uuid.uuid4().hex[:6]}"
    topic = west.create_topic(f"{alias}.heartbeats", partitions=3)
    load(west, topic, RECORDS, keys=True)
    flow = FLOW.format(
        name="f", alias=alias, east=east.bootstrap, west=west.bootstrap, topics="none", groups="none"
    )
    (tmp_path / "flow.yaml").write_text(flow)
    monkeypatch.setattr(internal_topic_reader, "RECORDS_MAX", READ_MAX)
    given = Namespace(file=[str(tmp_path / "flow.yaml")], secrets=str(tmp_path))
    topics = FileFlowTopics(valid_plans(flows_from(given), layout_from(given)))

    pages: list[InternalTopic] = []
    for page in pages_of(topics):
        if not pages:
            load(west, topic, LATER)
        pages.append(page)

    assert [page.problem for page in pages] == [""] * len(pages)
    assert max(len(page.records) for page in pages) <= READ_MAX
    records = [(record.partition, record.offset) for page in pages for record in page.records]
    assert len(records) == len(set(records)) == RECORDS
    spans = [
        (min(times), max(times))
        for page in pages
        if (times := [record.timestamp_ms for record in page.records])
    ]
    assert all(newer[0] >= older[1] for newer, older in pairwise(spans))


def pages_of(topics: FileFlowTopics) -> Iterator[InternalTopic]:
    """Yields what is read for each page, from the newest to the oldest."""
    older: Cursor = {}
    while True:
        page = asyncio.run(topics.read("f", "heartbeats", older))
        yield page
        if not (older := page.older or {}):
            return
