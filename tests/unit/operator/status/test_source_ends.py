"""The last known ends of a lost source come from the pods of its flow.

They are bounded, and never beyond the ends of the source's logs.
"""

import json
from typing import Any

import pytest

from mirrorflow_operator.status.source_ends import (
    NOTICED_WITHIN_S,
    ROWS_MAX,
    SourceEnds,
    newest_ends,
    parse_source_ends,
)

NOW_S = 1_796_000_000.0
LOST = {"reach": "Unreachable", "sinceSeconds": 60.0}


def response(rows: Any, side: Any = None) -> str:
    connector = {"connector": "MirrorSourceConnector", "source": side or {"reach": "Reachable"}}
    return json.dumps({"connectors": [connector], "partitions": rows})


def row(topic: str = "orders", partition: int = 0, end: Any = 10, copied: Any = 7) -> dict[str, Any]:
    return {
        "connector": "MirrorSourceConnector",
        "topic": topic,
        "partition": partition,
        "sourceEndOffset": end,
        "sourceOffset": copied,
    }


def test_source_ends_are_read_with_the_time_until_which_they_are_known():
    """A process detects a disconnected source only after a while, and does not read ends during that time."""
    read = parse_source_ends(response([row(), row(partition=1, end=None)], LOST), now_s=NOW_S)

    until_ms = int((NOW_S - 60.0 - NOTICED_WITHIN_S) * 1_000)
    assert SourceEnds(ends={("orders", 0): (10, 7)}, known_until_ms=until_ms) == read


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"partitions": 1}', '{"partitions": [1], "connectors": 2}', response([row("a b")])],
)
def test_a_response_without_source_ends_is_ignored(text: str):
    assert parse_source_ends(text, now_s=NOW_S) is None


def test_the_time_of_the_ends_of_an_unknown_source_is_absent():
    read = parse_source_ends(response([row()], {"reach": "Unknown"}), now_s=NOW_S)

    assert read is not None
    assert read.known_until_ms is None


def test_the_highest_ends_of_several_pods_are_used():
    first = SourceEnds(ends={("a", 0): (5, 5), ("b", 0): (3, 1)}, known_until_ms=2)
    second = SourceEnds(ends={("a", 0): (9, 4)}, known_until_ms=1)

    assert SourceEnds(ends={("a", 0): (9, 5), ("b", 0): (3, 1)}, known_until_ms=2) == newest_ends(
        [first, second]
    )
    assert newest_ends([]) is None


def test_the_config_map_has_the_partitions_with_the_greatest_lag_that_fit():
    many = {("t" * 249, number): (2**50 + number, 2**50) for number in range(ROWS_MAX + 500)}

    document = SourceEnds(ends=many, known_until_ms=1).document()

    assert ROWS_MAX == len(document["partitions"])
    assert ROWS_MAX + 499 == document["partitions"][0][1]
    assert len(json.dumps(document)) < 900_000
