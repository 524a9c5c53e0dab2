"""The effect of built-in transformations on topics and headers."""

import pytest

from mirrorflow_core.errors import InvalidSettingError, SettingError
from mirrorflow_core.replication_policy import DefaultPolicy, IdentityPolicy
from mirrorflow_core.settings import SourceSettings, TransformKind, TransformSettings
from mirrorflow_core.transforms import TopicTransforms, Transforms, literal_bytes
from mirrorflow_replicator.config.source_properties import parse_source


def renaming(regex: str, replacement: str) -> TransformSettings:
    return TransformSettings(
        key="transforms.r", kind=TransformKind.RENAME, regex=regex, replacement=replacement
    )


def naming(*stages: TransformSettings, in_base64: bool = False) -> TopicTransforms:
    return TopicTransforms(DefaultPolicy(), "A", Transforms(stages, headers_in_base64=in_base64))


@pytest.mark.parametrize("replacement", ["$2", "$", "x\\", "${no}", "${1}"])
def test_a_replacement_that_java_refuses_is_refused_before_copying_starts(replacement: str):
    """In Java the task fails at its first record."""
    with pytest.raises(InvalidSettingError, match=r"^transforms\.r\.replacement: "):
        naming(renaming("(.*)", replacement))


def test_only_whole_names_are_replaced_and_the_next_stage_gets_the_new_name():
    """`matches` and `replaceFirst` of RegexRouter behave the same."""
    chain = naming(renaming(r"A\.(.*)", "$1"), renaming("orders", "sales"), renaming("sale", "never"))

    assert [chain.target_topic(topic) for topic in ("orders", "orders2")] == ["sales", "orders2"]


def test_a_predicate_gets_the_name_at_its_position_in_the_chain():
    """After a renaming, the same expression selects different topics."""
    drop = TransformSettings(
        key="transforms.d", kind=TransformKind.DROP, predicate=r"A\..*", predicate_key="p", negate=True
    )
    rename = renaming(r"A\.(x)", "$1")

    assert naming(rename, drop).route("x").dropped_by == "transforms.d"
    assert naming(drop, rename).route("x").dropped_by is None
    assert naming(rename, drop).route("y").dropped_by is None


def test_headers_are_inserted_and_dropped_in_order():
    """A dropped header can be inserted again later. Other headers keep their order."""
    insert = TransformSettings(key="i", kind=TransformKind.INSERT_HEADER, header="a", value=b"new")
    null = TransformSettings(key="n", kind=TransformKind.INSERT_HEADER, header="n")
    drop = TransformSettings(key="d", kind=TransformKind.DROP_HEADERS, headers=("a", "b"))
    headers = ((b"a", b"1"), (b"c", None), (b"a", b"2"), (b"d", b"\xff"))

    assert naming(insert, drop, insert, null).header_edits("t").edited(headers) == (
        (b"c", None), (b"d", b"\xff"), (b"a", b"new"), (b"n", None),
    )  # fmt: skip


def test_only_header_values_of_the_source_are_written_in_base64():
    """SimpleHeaderConverter writes bytes in base64, but writes literals as text."""
    insert = TransformSettings(key="i", kind=TransformKind.INSERT_HEADER, header="a", value=b"text")

    edits = naming(insert, in_base64=True).header_edits("t")

    assert edits.edited(((b"x", b"\x00\xff"), (b"n", None))) == (
        (b"x", b"AP8="), (b"n", None), (b"a", b"text"),
    )  # fmt: skip


def test_heartbeats_keep_their_name_and_no_copy_gets_the_name_of_an_internal_topic():
    """Heartbeats topics show how many clusters a record has passed.

    A copy with the name of a positions topic would destroy both topics.
    """
    strip = naming(renaming(r"A\.(.*)", "$1"), renaming("bad", "mm2-offsets.A.internal"))

    assert strip.target_topic("heartbeats") == "A.heartbeats"
    assert strip.obstacle("heartbeats") is None
    assert "mm2-offsets.A.internal" in str(strip.obstacle("bad"))
    assert strip.obstacle("good") is None


def test_transformations_apply_to_names_of_the_identity_policy():
    """Transformations follow any policy."""
    identity = IdentityPolicy(source_alias="A")

    assert (
        TopicTransforms(identity, "A", Transforms([renaming("(.*)", "copy-$1")])).target_topic("t")
        == "copy-t"
    )


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
def test_literals_are_written_as_in_java(text: str, expected: bytes | None):
    """The expected values are the output of Java's Values and SimpleHeaderConverter."""
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
    """The written header would differ from the file."""
    with pytest.raises(SettingError, match=r"^transforms\.i\.value\.literal: "):
        settings(INSERT | {"transforms.i.value.literal": text})


@pytest.mark.parametrize(
    ("lines", "expected"),
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
def test_an_invalid_or_unsupported_transformation_is_an_error_of_its_key(
    lines: dict[str, str], expected: str
):
    """The error names the key and, if unsupported, the class."""
    with pytest.raises(SettingError, match=f"^{expected}"):
        settings(RENAME | lines)


def test_a_missing_replacement_is_an_error_and_an_empty_one_is_not():
    """In Java's properties, an empty value is a value."""
    without = {key: value for key, value in RENAME.items() if not key.endswith("replacement")}

    with pytest.raises(SettingError, match=r"^transforms\.r\.replacement: it is missing"):
        settings(without)
    assert settings(without | {"transforms.r.replacement": ""}).transforms[0].kind is TransformKind.RENAME


def test_a_changed_renaming_changes_the_naming_and_changed_headers_change_the_stream():
    """Changing a filter or the name of a stage changes neither."""
    plain, renamed = settings({}), settings(RENAME)
    other = settings(RENAME | {"transforms.r.replacement": "y-$1"})
    with_header, other_header = settings(INSERT), settings(INSERT | {"transforms.i.value.literal": "w"})
    in_base64 = settings({"header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter"})

    assert plain.naming_fingerprint == plain.policy.fingerprint == with_header.naming_fingerprint
    assert len({plain.naming_fingerprint, renamed.naming_fingerprint, other.naming_fingerprint}) == 3
    assert plain.header_fingerprint == renamed.header_fingerprint is None
    assert (
        len(
            {
                "",
                with_header.header_fingerprint,
                other_header.header_fingerprint,
                in_base64.header_fingerprint,
            }
        )
        == 4
    )
    renamed_stage = {key.replace(".r.", ".q."): value for key, value in RENAME.items()} | {"transforms": "q"}
    assert settings(renamed_stage).naming_fingerprint == renamed.naming_fingerprint
