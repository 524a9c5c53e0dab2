"""The responses of connectors are validated, so that an invalid or hostile one cannot break a page."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_console.documents import (
    BODY_MAX_BYTES,
    DocumentError,
    DocumentUpdate,
    FlowReading,
    connector_document,
    group_offsets,
    parse_json,
    updated_document,
)
from mirrorflow_console.flow_views import Level, flow_view
from mirrorflow_console.group_views import group_rows
from mirrorflow_console.heat_map import Measure, batch_counts, heat_map
from mirrorflow_console.partition_table import checked_partitions, columns_of
from mirrorflow_console.partition_views import partition_levels, topic_rows
from mirrorflow_replicator.http import progress
from tests.unit.console.flow_readings import STOPPED, healthy, set_value, table
from tests.unit.http.reports import connector, content, partition, task, view

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
# Those that views compute with.
FIELDS = st.sampled_from(
    ["topic", "phase", "lagRecords", "lagSeconds", "batches", "stalledSeconds", "message"]
)


def test_a_document_of_a_worker_is_read_completely():
    checked = connector_document(table(healthy(partition(0), partition(1))))

    assert checked.partitions.column("partition") == [0, 1]
    assert (checked.source, checked.target, checked.dropped, checked.partitions_total) == ("A", "B", 0, 2)


def test_partitions_have_all_fields_and_share_equal_strings():
    parts = (partition(0), partition(1, "bills"), partition(2))
    response = progress.partitions({"limit": "9"}, view(healthy(*parts)))
    rows = {row["partition"]: row for row in json.loads(content(response))["partitions"]}
    columns = json.loads(content(progress.partitions({"columns": "yes"}, view(healthy(*parts)))))["columns"]

    partitions, dropped = checked_partitions(columns)

    assert dropped == 0
    for index, number in enumerate(partitions.column("partition")):
        assert rows[number] == {"connector": "A->B.source", **partitions.row(index)}
    _, first, second = sorted(partitions.column("targetTopic"))
    assert first is second


def test_a_partition_with_a_wrong_type_is_dropped_and_counted():
    document = table(healthy(partition(0), partition(1), partition(2)))
    set_value(document, 0, topic=["orders"])
    set_value(document, 1, lagRecords="9" * 40)

    checked = connector_document(document)

    assert checked.partitions.column("partition") == [2]
    assert checked.dropped == 2
    assert "2 partitions" in checked.notes[0]


@pytest.mark.parametrize("parts", [(), (partition(0),), (partition(0), partition(3, **STOPPED))])
def test_rows_that_a_process_has_written_are_read_like_columns(parts):
    response = progress.partitions({}, view(connector(task(*parts))))
    rows = json.loads(content(response))["partitions"]
    columns = table(connector(task(*parts)))["columns"]
    if parts:
        columns |= {"recordsPerSecond": 0.0, "bytesPerSecond": 0.0}

    (written, _), (received, _) = checked_partitions(columns_of(rows)), checked_partitions(columns)

    assert [*map(written.row, range(len(written)))] == [*map(received.row, range(len(received)))]
    assert len(written) == len(parts)


@pytest.mark.parametrize("rows", [None, 3, "x", [3, None, []], [{}], [{"partition": 1}]])
def test_invalid_rows_have_no_partition(rows):
    assert len(checked_partitions(columns_of(rows))[0]) == 0


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), float("inf"), float("nan"), 1 << 63, "7", True],
    ids=["long", "long-negative", "infinity", "nan", "beyond-64-bits", "text", "flag"],
)
def test_a_figure_that_is_no_possible_number_is_zero(value):
    """JSON has integers of any length, and one of 400 digits is too large for a float."""
    document = table(healthy(partition(0)))
    document["summary"].update(uptimeSeconds=value, lagSeconds=value, records=value)

    figures = connector_document(document).figures

    assert (figures.uptime_s, figures.lag_s, figures.records) == (0.0, None, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ["orders"]),
        ("lagRecords", "9"),
        ("partition", True),
        ("phase", "x" * 3_000),
        ("records", 1 << 70),
    ],
)
def test_a_partition_with_a_wrong_type_in_a_column_is_dropped_and_counted(name, value):
    document = table(healthy(partition(0), partition(1)))
    set_value(document, 0, **{name: value})

    checked = connector_document(document)

    assert checked.partitions.column("partition") == [1]
    assert checked.dropped == 1


@pytest.mark.parametrize(
    ("name", "value"), [("topic", {"a": 1}), ("lagRecords", "9"), ("guarantee", None), ("records", 1 << 70)]
)
def test_a_wrong_value_of_all_partitions_drops_each_of_them(name, value):
    document = table(healthy(partition(0), partition(1)))
    document["columns"][name] = value

    checked = connector_document(document)

    assert (len(checked.partitions), checked.dropped) == (0, 2)


def test_a_wrong_value_drops_its_partition_where_others_share_their_values():
    document = table(healthy(partition(0), partition(1)))
    document["columns"]["partition"][0] = "0"

    checked = connector_document(document)

    assert (checked.partitions.column("partition"), checked.dropped) == ([1], 1)


def test_an_unknown_column_adds_no_partitions():
    document = table(healthy(partition(0), partition(1)))
    document["columns"].update(partition=[0, "1"], unknown=[0] * 9)

    checked = connector_document(document)

    assert (len(checked.partitions), checked.dropped) == (1, 1)


def test_values_of_all_partitions_without_a_list_have_no_partition():
    document = table(healthy(partition(0), partition(1)))
    document["columns"]["partition"] = 0

    assert len(connector_document(document).partitions) == 0


@pytest.mark.parametrize(
    "columns", [{"topic": ["a"]}, {"topic": 3}, {"topic": ["a"], "partition": [1, 2]}, {"x": []}]
)
def test_incomplete_columns_have_no_readable_partition(columns):
    document = {**table(healthy(partition(0))), "columns": columns}

    assert len(connector_document(document).partitions) == 0


def test_a_document_stays_the_same_object_while_only_figures_change():
    def response(lag: int, unless: str) -> DocumentUpdate:
        report = healthy(partition(0, source_offset=100 - lag, source_end_offset=100))
        value = table(report, limit=0, query={"unless": unless})
        return updated_document(value, known)

    known = None
    known = response(10, "").document
    same, changed = response(30, known.digest), response(30, "other")

    assert same.document is known
    assert (known.figures.lag_records, same.figures.lag_records) == (10, 30)
    assert (changed.document is known, changed.figures.lag_records) == (False, 30)


def test_figures_with_a_different_digest_are_refused():
    value = table(healthy(partition(0)), limit=0, query={"unless": ""})
    known = connector_document(value)

    with pytest.raises(DocumentError):
        updated_document({"version": 1, "digest": "other", "figures": {}}, known)


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, {"summary": {}}, {"partitions": [], "summary": 3}])
def test_documents_of_an_unexpected_form_are_refused(value):
    with pytest.raises(DocumentError):
        connector_document(value)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b'{"a": NaN}', b"[" * 100_000, b"\xff\xfe", b"1" * 10_000, b" " * (BODY_MAX_BYTES + 1)],
)
def test_invalid_json_is_refused(body):
    with pytest.raises(DocumentError):
        parse_json(body)


@given(
    summary=JSON,
    columns=st.dictionaries(FIELDS, JSON, max_size=2),
    connectors=JSON,
    changed=st.dictionaries(FIELDS, JSON),
)
def test_any_document_becomes_a_view_or_is_refused(summary, columns, connectors, changed):
    document = table(healthy(partition(0), partition(1)))
    set_value(document, 0, **changed)
    document["columns"] |= columns
    document["connectors"] = connectors
    if isinstance(summary, dict):
        document["summary"] |= summary

    try:
        checked = connector_document(document)
    except DocumentError:
        return
    flow_view(FlowReading(key="f", name="f", document=checked))
    topic_rows(checked.partitions)
    for measure in Measure:
        heat_map(checked.partitions, partition_levels(checked.partitions), measure)


def test_invalid_offsets_of_groups_are_dropped():
    line = {
        "group": "g", "topic": "t", "partition": 0, "targetTopic": "A.t", "sourceOffset": 3, "targetOffset": None,
        "targetOffsetAtMost": None, "translation": "exact", "checkpointOffset": 1, "checkpointAgeSeconds": None,
        "groupOffset": None, "written": True, "why": None, "readAgainAtLeast": 0, "readAgainAtMost": 0,
    }  # fmt: skip

    rows, truncated = group_offsets({"offsets": [line, {**line, "group": 4}, "x"], "truncated": True})

    assert ([row["group"] for row in rows], truncated) == (["g"], True)
    assert json.dumps(rows)


def test_a_line_of_a_group_has_all_fields_also_from_a_connector_without_some():
    """An earlier version lacks fields that may be unknown; unknown ones of a later version are left out."""
    line = {
        "group": "g",
        "topic": "t",
        "partition": 0,
        "targetTopic": "t",
        "translation": "exact",
        "written": True,
    }

    (row,), _ = group_offsets({"offsets": [{**line, "later": [1] * 9}]})

    assert (row["why"], row["readAgainAtMost"], "later" in row) == (None, None, False)
    (shown,) = group_rows(FlowReading(key="a", name="a", offsets=(row,)))
    assert shown.again_most is None


@pytest.mark.parametrize(
    "batches", [{"raw": 10**400}, {"raw": "x", "later": 2}, [1], "raw", {"raw": [[]]}, None]
)
def test_counts_of_batches_that_are_none_are_left_out(batches: Any):
    """The page of the partition shows them; its error would hide everything else about the partition."""
    document = table(healthy(partition(0), partition(1)))
    set_value(document, 0, batches=batches)
    set_value(document, 1, batches={"raw": 3, "later": 2})

    partitions = connector_document(document).partitions

    assert [*map(batch_counts, partitions.column("batches"))] == [{}, {"raw": 3}]
    assert heat_map(partitions, [Level.FINE] * 2, Measure.BATCHES).cells == "01"
