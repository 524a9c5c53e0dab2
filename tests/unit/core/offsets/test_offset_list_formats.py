"""Lists of offsets are accepted as a whole, or refused with each invalid line.

Translations keep the format and the order.
"""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import InvalidOffsetsError
from mirrorflow_core.offsets.application_offsets import ApplicationOffset, ApplicationTranslation
from mirrorflow_core.offsets.offset_list_formats import (
    PROBLEMS_MAX,
    OffsetListFormat,
    format_translations,
    parse_offsets,
)


def offset_of(topic, partition, offset):
    return ApplicationOffset(topic=topic, partition=partition, offset=offset)


BOTH = (offset_of("orders", 0, 42), offset_of("a.b_c-d", 7, 2**63 - 1))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("orders,0,42\na.b_c-d,7,9223372036854775807\n", OffsetListFormat.CSV),
        ("\ufeff orders , 0 ,42\r\n\r\na.b_c-d,7,9223372036854775807", OffsetListFormat.CSV),
        ('offset,note,topic,partition\n42,"x, y",orders,0\n9223372036854775807,,a.b_c-d,7\n', OffsetListFormat.CSV_WITH_HEADER),
        (
            '{"topic":"orders","partition":0,"offset":42}\n\n{"offset":9223372036854775807,"topic":"a.b_c-d","partition":7,"more":1}',
            OffsetListFormat.JSON_LINES,
        ),
        (
            '\n[{"topic":"orders","partition":0,"offset":42},\n {"topic":"a.b_c-d","partition":"7","offset":"9223372036854775807"}]',
            OffsetListFormat.JSON_ARRAY,
        ),
    ],
)  # fmt: skip
def test_each_format_is_recognized(text, form):
    assert parse_offsets(text.encode()) == (form, BOTH)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "line 1: there are no offsets; write topic,partition,offset on each line."),
        (b"topic,partition,offset\n", "line 1: there are no offsets; write topic,partition,offset on each line."),
        (b"orders,0\n", "line 1: it has 2 columns; write topic,partition,offset, or a header with these names."),
        (b"orders,0,1\n\norders,-1,1", "line 3: partition '-1' is not a number from 0 to 2147483647."),
        (b"orders,0,1.5", "line 1: offset '1.5' is not a number from 0 to 9223372036854775807."),
        (b"orders,0,9223372036854775808", "line 1: offset '9223372036854775808' is not a number from 0 to 9223372036854775807."),
        ("orders,0,\u0661".encode(), "line 1: offset '\u0661' is not a number from 0 to 9223372036854775807."),
        (b"or ders,0,1", "line 1: topic 'or ders' is not the name of a topic."),
        (b"..,0,1", "line 1: topic '..' is not the name of a topic."),
        (b"topic,partition,offset\norders,0,1,2", "line 2: it has 4 columns, and the header has 3."),
        (b'orders,0,1\n"orders,0,1', "line 2: it is not CSV (unexpected end of data)."),
        (b"orders,0,1\norders,0,\xff", "line 2: it is not UTF-8."),
        (b'{"topic":"orders","partition":0}', "line 1: offset is missing."),
        (b'{"topic":"orders","partition":0,"offset":true}', "line 1: offset 'true' is not a number from 0 to 9223372036854775807."),
        (b'{"topic":"orders",\n"partition":0}', "line 1: it is not a JSON object; write one on each line, or one array."),
        (b'[{"topic":"orders","partition":0,"offset":1},7]', "item 2: it is not an object with topic, partition and offset."),
        (b"[1,\n2", "line 2: it is not JSON (Expecting ',' delimiter)."),
        (b"[" * 100_000, "line 1: it is not a JSON array of offsets."),
        (b'[{"topic":7,"partition":0,"offset":1}]', "item 1: topic '7' is not the name of a topic."),
    ],
)  # fmt: skip
def test_an_invalid_list_is_refused_with_its_line(content, problem):
    with pytest.raises(InvalidOffsetsError) as refused:
        parse_offsets(content)

    assert refused.value.problems[0] == problem


@pytest.mark.parametrize("end", ["\u2028", "\x85"])
def test_a_string_of_a_json_line_may_hold_the_end_of_a_line(end):
    """JSON allows it in a string, such as in a field that is ignored."""
    line = json.dumps(
        {"topic": "orders", "partition": 0, "offset": 42, "note": f"a{end}b"}, ensure_ascii=False
    )

    assert (OffsetListFormat.JSON_LINES, (BOTH[0], BOTH[0])) == parse_offsets(f"{line}\r\n{line}\n".encode())


def test_the_error_names_invalid_lines_up_to_a_limit():
    with pytest.raises(InvalidOffsetsError) as refused:
        parse_offsets(b"orders,0,1\n" + b"orders,x,1\n" * (PROBLEMS_MAX + 5))

    assert len(refused.value.problems) == PROBLEMS_MAX + 1
    assert refused.value.problems[0].startswith("line 2: ")
    assert refused.value.problems[-1] == "5 more lines are invalid."


def test_a_list_above_the_limit_is_refused():
    assert 3 == len(parse_offsets(b"orders,0,1\n" * 3, offsets_max=3)[1])
    with pytest.raises(InvalidOffsetsError, match="line 4: there are more than 3 offsets"):
        parse_offsets(b"orders,0,1\n" * 4, offsets_max=3)


TRANSLATIONS = (
    ApplicationTranslation(topic="A.orders", partition=0, offset=40, is_exact=True, reread_max_records=0),
    ApplicationTranslation(topic="A.orders", partition=1, offset=7, reread_max_records=3, why="a, reason"),
    ApplicationTranslation(topic=None, partition=2, offset=None, why="nothing"),
)


def test_translations_have_the_format_of_the_input():
    by_form = {form: list(format_translations(form, TRANSLATIONS)) for form in OffsetListFormat}

    lines = ["A.orders,0,40,exact,0,", 'A.orders,1,7,bound,3,"a, reason"', ",2,,unknown,,nothing"]
    assert by_form[OffsetListFormat.CSV] == lines
    assert by_form[OffsetListFormat.CSV_WITH_HEADER] == [
        "topic,partition,offset,translation,readAgainAtMost,why",
        *lines,
    ]
    objects = [json.loads(line) for line in by_form[OffsetListFormat.JSON_LINES]]
    assert objects[1] == {
        "topic": "A.orders", "partition": 1, "offset": 7, "translation": "bound", "readAgainAtMost": 3, "why": "a, reason",
    }  # fmt: skip
    assert objects[2]["offset"] is None
    assert objects == json.loads("\n".join(by_form[OffsetListFormat.JSON_ARRAY]))


topics = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
offsets = st.lists(
    st.builds(offset_of, topics, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    min_size=1,
    max_size=20,
)


@given(offsets, st.sampled_from([form for form in OffsetListFormat if form is not OffsetListFormat.CSV]))
def test_written_translations_can_be_read_again(given_offsets, form):
    translations = [
        ApplicationTranslation(
            topic=offset.topic,
            partition=offset.partition,
            offset=offset.offset,
            reread_max_records=1,
            why='"a",\n b',
        )
        for offset in given_offsets
    ]

    assert parse_offsets("\n".join(format_translations(form, translations)).encode()) == (
        form,
        tuple(given_offsets),
    )


@given(st.binary(max_size=200))
def test_any_input_is_parsed_or_refused_with_an_offsets_error(content):
    try:
        _, parsed = parse_offsets(content)
    except InvalidOffsetsError:
        return
    assert parsed


@given(st.text(alphabet='[]{}",:0123456789abc topicpartitionoffset\n\r\x00', max_size=80))
def test_almost_valid_text_is_parsed_or_refused_with_an_offsets_error(text):
    try:
        form, parsed = parse_offsets(text.encode())
    except InvalidOffsetsError:
        return
    assert parsed
    if form in {OffsetListFormat.CSV, OffsetListFormat.CSV_WITH_HEADER}:
        assert len(parsed) <= len(list(csv.reader(io.StringIO(text))))
