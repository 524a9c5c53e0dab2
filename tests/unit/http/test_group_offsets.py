"""`GET /offsets` of the checkpoint connector returns the offsets of one group or all groups as bounded JSON."""

import json

import pytest

from mirrorflow_core.offsets.checkpoints import GroupOffset
from mirrorflow_core.reports import GroupsReport
from mirrorflow_replicator.http.group_offsets import offsets
from tests.unit.http.reports import NOW_S, connector, content, view

OFFSET = GroupOffset(
    group="g1", topic="orders", partition=3, target_topic="A.orders", source_offset=100, target_offset=90, at_most=95,
    checkpoint_offset=90, checkpoint_written_ms=int(NOW_S * 1000) - 2500, group_offset=80, written=False, why="it is due",
    has_members_on_source=True,
)  # fmt: skip


def offsets_of(group):
    return (OFFSET for _ in range(3000)) if group in {None, "g1"} else ()


def get_offsets(**query):
    reports = connector(name="checkpoint", groups=GroupsReport(offsets=offsets_of)), connector(name="source")
    response = offsets(query, view(*reports))
    return response.status, json.loads(content(response))


def test_an_entry_has_all_fields_that_the_command_prints():
    status, body = get_offsets(group="g1", limit="1")

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
                "hasMembersOnSource": True, "hasMembersOnTarget": None,
            }
        ],
    }  # fmt: skip


def test_a_response_is_bounded_and_marked_as_truncated():
    _, body = get_offsets()

    assert (1000, True) == (len(body["offsets"]), body["truncated"])
    assert (3000, False) == (
        (body := get_offsets(limit="5000")[1]) and len(body["offsets"]),
        body["truncated"],
    )


def test_an_unknown_group_has_no_entries():
    assert [] == get_offsets(group="other")[1]["offsets"]
    assert [] == get_offsets(connector="source")[1]["offsets"]


@pytest.mark.parametrize("limit", ["-1", "x", "9999999", "", "\u0661"])
def test_an_invalid_limit_is_refused(limit):
    assert 400 == get_offsets(limit=limit)[0]
