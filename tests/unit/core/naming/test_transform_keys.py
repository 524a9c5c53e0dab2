"""`transforms` and `predicates` as Kafka Connect writes them."""

import pytest

from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.header_literals import literal_bytes
from mirrorflow_core.settings import SourceSettings, TransformKind
from mirrorflow_replicator.config.source import parse_source

PACKAGE = "org.apache.kafka.connect.transforms."
RENAME = {
    "transforms": "r",
    "transforms.r.type": f"{PACKAGE}RegexRouter",
    "transforms.r.regex": "(.*)",
    "transforms.r.replacement": "x-$1",
}
INSERT = {
    "transforms": "i",
    "transforms.i.type": "InsertHeader",
    "transforms.i.header": "h",
    "transforms.i.value.literal": "v",
}


def settings(lines: dict[str, str]) -> SourceSettings:
    plain = {
        "name": "orders",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": "a:1",
    }
    return parse_source({**plain, **lines}, {"bootstrap.servers": "b:1"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", b""),
        ("null", None),
        ("true", b"true"),
        ("a:b,c", b"a:b,c"),
        ('"q"', b'"q"'),
        ("1", b"1"),
        ("1.5", b"1.5"),
        ("0.1", b"0.1"),
        ("3.14159", b"3.14159"),
        ("1234567.1", b"1234567.1"),
        ("5s", b"5s"),
        ("10.0.0.1", b"10.0.0.1"),
        ("-x", b"-x"),
        ("1-2", b"1-2"),
        ("9223372036854775807", b"9223372036854775807"),
        ("a\\:b", b"a\\:b"),
    ],
)
def test_literals_are_written_as_java_writes_them(text: str, expected: bytes | None):
    """Each row was printed by Java's Values and SimpleHeaderConverter."""
    assert literal_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "007",
        "+5",
        "1.10",
        "1e3",
        "1.0",
        "5.",
        "-0",
        "12345678.5",
        "0.0001",
        "2026-01-31",
        "10:30",
        "[1, 2]",
        "{}",
    ],
)
def test_literals_that_java_rewrites_are_refused(text: str):
    """What is in the header would not be what is in the file."""
    with pytest.raises(SettingError, match=r"^transforms\.i\.value\.literal: "):
        settings(INSERT | {"transforms.i.value.literal": text})


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            {"transforms.r.type": f"{PACKAGE}MaskField$Value"},
            r"transforms\.r\.type is refused: .*MaskField.*built in",
        ),
        ({"transforms.r.type": "com.example.Mine"}, r"transforms\.r\.type is refused: com\.example\.Mine"),
        ({"transforms.r.regex": "("}, r"transforms\.r\.regex: "),
        ({"transforms.r.replacement": "$2"}, r"transforms\.r\.replacement: .*group 2"),
        ({"transforms": "r, r"}, "transforms: r is there twice"),
        ({"transforms": "r, s"}, r"transforms\.s\.type: it is missing"),
        ({"transforms.r.predicate": "p"}, r"transforms\.r\.predicate: 'p' is not among"),
        ({"transforms.r.negate": "true"}, r"transforms\.r\.negate: there is no predicate"),
        ({"predicates": "p"}, r"predicates\.p\.type: it is missing"),
        (
            {"predicates": "p", "predicates.p.type": f"{PACKAGE}predicates.RecordIsTombstone"},
            r"predicates\.p\.type is refused: .*RecordIsTombstone",
        ),
        ({"transforms.r.type": "Filter"}, r"transforms\.r\.predicate: without it nothing"),
        ({"transforms.r.type": "DropHeaders"}, r"transforms\.r\.headers: it is missing"),
        ({"transforms.r.type": "InsertHeader"}, r"transforms\.r\.value\.literal: it is missing"),
    ],
)
def test_what_is_wrong_or_not_built_in_is_named(lines: dict[str, str], sentence: str):
    """By its key and by the name of the class, before anything starts."""
    with pytest.raises(SettingError, match=f"^{sentence}"):
        settings(RENAME | lines)


def test_missing_replacement_is_missing_and_an_empty_one_is_not():
    """An empty value is one in Java's properties."""
    without = {key: value for key, value in RENAME.items() if not key.endswith("replacement")}

    with pytest.raises(SettingError, match=r"^transforms\.r\.replacement: it is missing"):
        settings(without)
    assert settings(without | {"transforms.r.replacement": ""}).transforms[0].kind is TransformKind.RENAME


def test_another_renaming_is_another_naming_and_other_headers_are_another_stream():
    """Both are decided with all copiers; a filter, or what a stage is called, changes neither."""
    plain, renamed = settings({}), settings(RENAME)
    other = settings(RENAME | {"transforms.r.replacement": "y-$1"})
    with_header, other_header = settings(INSERT), settings(INSERT | {"transforms.i.value.literal": "w"})
    in_base64 = settings({"header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter"})

    assert plain.naming_words == plain.policy.words == with_header.naming_words
    assert len({plain.naming_words, renamed.naming_words, other.naming_words}) == 3
    assert plain.header_words == renamed.header_words == ""
    assert len({"", with_header.header_words, other_header.header_words, in_base64.header_words}) == 4
    again = {key.replace(".r.", ".q."): value for key, value in RENAME.items()} | {"transforms": "q"}
    assert settings(again).naming_words == renamed.naming_words
