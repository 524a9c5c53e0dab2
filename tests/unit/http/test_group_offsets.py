"""`GET /offsets` of the checkpoint connector: one group or all, bounded, in words that programs read."""

import json

import pytest

from mirrorflow_core.offsets.checkpoints import GroupOffset
from mirrorflow_core.reports import GroupsReport
from mirrorflow_replicator.http.progress import offsets
from tests.unit.http.reports import NOW_S, connector, content, view

ONE = GroupOffset(
    group="g1", topic="orders", partition=3, target_topic="A.orders", source_offset=100, target_offset=90, at_most=95,
    checkpoint_offset=90, checkpoint_written_ms=int(NOW_S * 1000) - 2500, group_offset=80, written=False, why="it is due",
)  # fmt: skip


def known(group):
    return (ONE for _ in range(3000)) if group in {None, "g1"} else ()


def shown(**query):
    reports = connector(name="checkpoint", groups=GroupsReport(offsets=known)), connector(name="source")
    response = offsets(query, view(*reports))
    return response.status, json.loads(content(response))


def test_a_line_has_all_that_the_command_prints():
    status, body = shown(group="g1", limit="1")

    assert status == 200
    assert body == {
        "version": 1,
        "truncated": True,
        "offsets": [
            {
                "connector": "checkpoint", "group": "g1", "topic": "orders", "partition": 3, "targetTopic": "A.orders",
                "sourceOffset": 100, "targetOffset": 90, "targetOffsetAtMost": 95, "translation": "bound",
                "checkpointOffset": 90, "checkpointAgeSeconds": 2.5, "groupOffset": 80, "written": False,
                "why": "it is due", "readAgainAtLeast": 10, "readAgainAtMost": 15,
            }
        ],
    }  # fmt: skip


def test_an_answer_is_bounded_and_says_that_there_is_more():
    _, body = shown()

    assert (1000, True) == (len(body["offsets"]), body["truncated"])
    assert (3000, False) == ((body := shown(limit="5000")[1]) and len(body["offsets"]), body["truncated"])


def test_a_group_that_is_not_known_has_no_lines():
    assert [] == shown(group="other")[1]["offsets"]
    assert [] == shown(connector="source")[1]["offsets"]


@pytest.mark.parametrize("limit", ["-1", "x", "9999999", "", "\u0661"])
def test_a_limit_that_is_none_is_refused(limit):
    assert 400 == shown(limit=limit)[0]
