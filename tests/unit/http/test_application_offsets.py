"""`POST /offsets/translate` translates a list, keeps its format, enforces limits, and changes nothing."""

import asyncio
import json

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.offsets.application_offsets import ApplicationTranslation
from mirrorflow_core.reports import GroupsReport
from mirrorflow_replicator.http.application_offsets import OFFSETS_MAX, respond
from mirrorflow_replicator.http.worker_view import Request
from tests.unit.http.reports import connector, view
from tests.unit.http.test_server import exchange

ARRAY = b'[{"topic":"orders","partition":3,"offset":42}]'


async def shifted(offsets, reverse):
    """Translates each offset to the previous one or, in reverse, to the next one."""
    return [
        ApplicationTranslation(
            topic=f"A.{offset.topic}",
            partition=offset.partition,
            offset=offset.offset + (1 if reverse else -1),
            is_exact=True,
            reread_max_records=0,
        )
        for offset in offsets
    ]


def checkpoint(name="checkpoint", translate=shifted):
    return connector(name=name, groups=GroupsReport(translate=translate))


def post(body, query="", reports=None):
    request = Request(method="POST", path="/offsets/translate", query=query, body=body)
    reports = (connector(name="source"), checkpoint()) if reports is None else reports
    response = asyncio.run(respond(request, view(*reports)))
    assert isinstance(response.body, bytes)
    return response.status, response.content_type, response.body.decode()


def test_a_json_array_is_translated_to_a_json_array():
    status, kind, body = post(ARRAY)

    assert (200, "application/json") == (status, kind)
    assert json.loads(body) == [
        {"topic": "A.orders", "partition": 3, "offset": 41, "translation": "exact", "readAgainAtMost": 0, "why": ""}
    ]  # fmt: skip


def test_csv_is_translated_to_csv_and_back():
    assert post(b"orders,3,42\n") == (200, "text/csv; charset=utf-8", "A.orders,3,41,exact,0,\n")
    assert post(b"orders,3,42\n", "reverse=true")[2] == "A.orders,3,43,exact,0,\n"
    assert post(ARRAY[1:-1])[1] == "application/x-ndjson"


@pytest.mark.parametrize(
    ("body", "query", "message"),
    [
        (b"orders,3\n", "", "line 1: it has 2 columns; write topic,partition,offset, or a header with these names."),
        (b"orders,3,1\n" * (OFFSETS_MAX + 1), "", "line 5001: there are more than 5000 offsets; divide the list."),
        (b"", "", "line 1: there are no offsets; write topic,partition,offset on each line."),
        (ARRAY, "reverse=yes", "reverse: yes is not true or false."),
    ],
)  # fmt: skip
def test_an_invalid_request_is_refused(body, query, message):
    status, _, content = post(body, query)

    assert (400, message) == (status, json.loads(content)["message"])


def test_a_request_must_name_the_connector_if_there_are_several():
    both = checkpoint("a"), checkpoint("b")

    assert 404 == post(ARRAY, reports=(connector(name="source"),))[0]
    assert (400, "connector: write which one translates, of a, b.") == (
        (refused := post(ARRAY, reports=both))[0],
        json.loads(refused[2])["message"],
    )
    assert 200 == post(ARRAY, "connector=a", reports=both)[0]
    assert 404 == post(ARRAY, "connector=c", reports=both)[0]


def test_a_request_returns_503_before_the_offset_map_is_read_and_while_a_cluster_is_unreachable():
    async def away(_offsets, _reverse):
        raise UnreachableError(cluster="west", addresses="west:9092", problem="refused")

    assert 503 == post(ARRAY, reports=(checkpoint(translate=None),))[0]
    status, _, body = post(ARRAY, reports=(checkpoint(translate=away),))
    assert status == 503
    assert "Cluster west cannot be reached" in json.loads(body)["message"]


def test_a_read_only_server_accepts_posts_only_for_translations():
    served = view(checkpoint(), ready=True)
    request = b"POST /offsets/translate HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (
        len(ARRAY),
        ARRAY,
    )

    [(posted, _, body)] = exchange(request, state=lambda: served)
    [(got, headers, _)] = exchange(
        b"GET /offsets/translate HTTP/1.1\r\nHost: h\r\n\r\n", state=lambda: served
    )

    assert (200, 41) == (posted, json.loads(body)[0]["offset"])
    assert (405, "post") == (got, headers["allow"])
