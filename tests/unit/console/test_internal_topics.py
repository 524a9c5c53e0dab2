"""Decoded records of internal topics, newest first, in pages and with a filter."""

import re
from html import unescape

from mirrorflow_console.internal_topics import (
    PAGE_RECORDS,
    Cursor,
    InternalRecord,
    InternalTopic,
    PartitionRecords,
    cursor_text,
    newest_of_all,
    parsed_cursor,
    records_page,
)
from mirrorflow_core.wire.records import Record
from tests.unit.console.served_console import served
from tests.unit.console.test_server import SCRIPT, Tags, flows, get


def record(number: int, **fields: object) -> InternalRecord:
    return InternalRecord(partition=0, offset=number, timestamp_ms=1_000 * number, fields=fields)


def test_records_are_listed_newest_first_in_pages():
    topic = InternalTopic(name="t", records=[record(number, topic="orders") for number in range(70)])

    first, second = records_page(topic, "", 0), records_page(topic, "", 1)

    assert [row[0].offset for row in first.rows] == [*range(69, 69 - PAGE_RECORDS, -1)]
    assert (first.has_more, second.has_more, len(second.rows)) == (True, False, 70 - PAGE_RECORDS)


def test_the_filter_matches_values_and_named_fields():
    topic = InternalTopic(
        records=[record(1, topic="orders", group="billing"), record(2, topic="orders", group="audit")]
    )

    assert [row[0].offset for row in records_page(topic, "orders group=BILL", 0).rows] == [1]


def test_records_with_different_fields_share_a_table():
    topic = InternalTopic(records=[record(1, topic="orders"), record(2, unreadable="version 9")])
    page = records_page(topic, "", 0)

    assert page.columns == ("unreadable", "topic")
    assert [row[1] for row in page.rows] == [("version 9", ""), ("", "orders")]


class InternalTopicsStub:
    """Internal topics with one record; *reads* has the flow and kind of each read."""

    flows = ("a", SCRIPT)
    kinds = ("checkpoints", "offset-syncs")

    def __init__(self) -> None:
        self.reads: list[tuple[str, str]] = []
        self.before: Cursor = {}

    async def read(self, flow: str, kind: str, before: Cursor) -> InternalTopic:
        self.reads.append((flow, kind))
        self.before = before
        records = [record(number, topic=SCRIPT) for number in range(70)]
        older = {0: 930} if before in ({}, {0: 1_000}) else {}
        return InternalTopic(name=SCRIPT, cluster="west", records=records, before={0: 1_000}, older=older)


def test_the_page_escapes_records_and_reads_only_known_topics():
    topics = InternalTopicsStub()
    with served(flows(), internal=topics) as console:
        status, _, body = get(console, "/topics?flow=none&kind=../secrets&page=x")
        assert status == 200
        assert topics.reads == [("a", "checkpoints")]
        assert SCRIPT not in body
        assert not [tag for tag, attributes in Tags(body).tags if tag == "script" and "src" not in attributes]
        assert get(console, "/topics?flow=a&kind=offset-syncs")[0] == 200
        assert topics.reads[-1] == ("a", "offset-syncs")


def test_a_console_without_flow_files_has_no_page_for_topics():
    with served(flows()) as console:
        assert get(console, "/topics")[0] == 404
        assert "/topics" not in get(console, "/")[2]


def written(*at_ms: int, first: int = 0) -> list[Record]:
    """Records of successive offsets that were written at these times."""
    return [Record(first + index, timestamp, b"", b"") for index, timestamp in enumerate(at_ms)]


def test_records_that_may_have_newer_ones_in_another_partition_are_left_to_the_next_page():
    """Partition 0 was read back to the time 50: what partition 1 has from before comes after the rest of partition 0."""
    busy = PartitionRecords(written(50, 60, 70, first=97), 97, 100, has_older=True)
    quiet = PartitionRecords(written(10, 40, 65), 0, 3, has_older=False)

    kept, older = newest_of_all({0: busy, 1: quiet})

    assert {number: [row.timestamp for row in rows] for number, rows in kept.items()} == {
        0: [50, 60, 70],
        1: [65],
    }
    assert older == {0: 97, 1: 2}


def test_nothing_is_older_than_all_records():
    only = PartitionRecords(written(10, 40), 0, 2, has_older=False)

    assert newest_of_all({0: only, 1: PartitionRecords([], 7, 7, has_older=False)})[1] == {}


def test_a_span_of_a_compacted_topic_without_a_record_is_passed():
    empty = PartitionRecords([], 1_000, 9_000, has_older=True)

    assert newest_of_all({0: empty}) == ({0: []}, {0: 1_000})


def test_a_cursor_is_parsed_from_an_address_and_invalid_text_has_none():
    assert parsed_cursor(cursor_text({1: 40, 0: 123})) == {0: 123, 1: 40}
    for text in ("", "x", "0:", "-1:5x", f"{chr(0x661)}:5", "0:" + "9" * 40):
        assert parsed_cursor(text) == {}, text


def test_older_pages_follow_one_another_by_links():
    """The page after the last one that was read begins where the topic was read to."""
    topics = InternalTopicsStub()
    with served(flows(), internal=topics) as console:

        def linked(path: str, word: str) -> str:
            link = re.search(rf'<a href="([^"]+)">{word}</a>', get(console, path)[2])
            return unescape(link[1]) if link else ""

        second = linked("/topics?flow=a", "Older")
        assert second == "/topics?flow=a&kind=checkpoints&before=0%3A1000&page=1"
        third = linked(second, "Older")
        assert third == "/topics?flow=a&kind=checkpoints&before=0%3A930"
        assert (linked(third, "Newer"), linked(third, "Newest")) == ("", "/topics?flow=a&kind=checkpoints")
        assert topics.before == {0: 930}
