"""Decoded records of internal topics, newest first, in pages and with a filter."""

from mirrorflow_console.internal_topics import PAGE_RECORDS, InternalRecord, InternalTopic, records_page
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

    async def read(self, flow: str, kind: str) -> InternalTopic:
        self.reads.append((flow, kind))
        return InternalTopic(name=SCRIPT, cluster="west", records=[record(1, topic=SCRIPT)], total=1)


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
