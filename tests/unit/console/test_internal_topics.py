"""Internal topics, decoded: newest first, page by page, and text whatever they hold."""

from mirrorflow_console.internal_topics import PAGE_RECORDS, InternalRecord, InternalTopic, records_page
from tests.unit.console.serving import served
from tests.unit.console.test_server import SCRIPT, Tags, flows, get


def record(number: int, **fields: object) -> InternalRecord:
    return InternalRecord(partition=0, offset=number, timestamp_ms=1_000 * number, fields=fields)


def test_newest_records_come_first_in_pages():
    topic = InternalTopic(name="t", records=[record(number, topic="orders") for number in range(70)])

    first, second = records_page(topic, "", 0), records_page(topic, "", 1)

    assert [row[0].offset for row in first.rows] == [*range(69, 69 - PAGE_RECORDS, -1)]
    assert (first.has_more, second.has_more, len(second.rows)) == (True, False, 70 - PAGE_RECORDS)


def test_filter_finds_fields_by_their_values():
    topic = InternalTopic(
        records=[record(1, topic="orders", group="billing"), record(2, topic="orders", group="audit")]
    )

    assert [row[0].offset for row in records_page(topic, "orders group=BILL", 0).rows] == [1]


def test_records_with_different_fields_share_a_table():
    topic = InternalTopic(records=[record(1, topic="orders"), record(2, unreadable="version 9")])
    found = records_page(topic, "", 0)

    assert found.columns == ("unreadable", "topic")
    assert [row[1] for row in found.rows] == [("version 9", ""), ("", "orders")]


class Topics:
    """Internal topics that a test sets."""

    flows = ("a", SCRIPT)
    kinds = ("checkpoints", "offset-syncs")

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def read(self, flow: str, kind: str) -> InternalTopic:
        self.asked.append((flow, kind))
        return InternalTopic(name=SCRIPT, cluster="west", records=[record(1, topic=SCRIPT)], total=1)


def test_page_shows_records_as_text_and_reads_only_what_is_known():
    topics = Topics()
    with served(flows(), internal=topics) as console:
        status, _, body = get(console, "/topics?flow=none&kind=../secrets&page=x")
        assert status == 200
        assert topics.asked == [("a", "checkpoints")]
        assert SCRIPT not in body
        assert not [tag for tag, attributes in Tags(body).tags if tag == "script" and "src" not in attributes]
        assert get(console, "/topics?flow=a&kind=offset-syncs")[0] == 200
        assert topics.asked[-1] == ("a", "offset-syncs")


def test_console_without_files_reads_no_topic():
    with served(flows()) as console:
        assert get(console, "/topics")[0] == 404
        assert "/topics" not in get(console, "/")[2]
