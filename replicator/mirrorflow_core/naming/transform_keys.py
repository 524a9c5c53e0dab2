"""Parses `transforms` and `predicates` of a connector into `TransformSettings`, with Kafka Connect's keys.

RegexRouter, Filter, InsertHeader and DropHeaders are built in, each for all topics or for those of a
TopicNameMatches. All others read the content of records, or need a schema that MM2's bytes do not have, and
are refused by name.
"""

from dataclasses import replace

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.header_literals import literal_bytes
from mirrorflow_core.java.property_reader import PropertyReader
from mirrorflow_core.naming.transforms import Transforms
from mirrorflow_core.settings import TransformKind, TransformSettings

_PACKAGE = "org.apache.kafka.connect.transforms."
_PREDICATE = "TopicNameMatches"
_BUILT_IN = "RegexRouter, Filter, InsertHeader and DropHeaders are built in"


def read_transforms(read: PropertyReader) -> tuple[TransformSettings, ...]:
    """Return the transformations in their order.

    Raises InvalidSettingError, and RefusedSettingError for a class that is not built in.
    """
    names = _aliases(read, "transforms")
    predicates = {name: _pattern(read, f"predicates.{name}") for name in _aliases(read, "predicates")}
    stages = tuple(_stage(read, f"transforms.{name}", predicates) for name in names)
    Transforms(stages)  # compiles its expressions before anything starts
    return stages


def writes_headers_in_base64(read: PropertyReader) -> bool:
    """Whether `header.converter` is SimpleHeaderConverter, which writes MM2's headers as base64."""
    return read.text("header.converter").rpartition(".")[2] == "SimpleHeaderConverter"


def _aliases(read: PropertyReader, key: str) -> tuple[str, ...]:
    names = read.names(key, ())
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise InvalidSettingError(key=key, problem=f"{twice} is there twice", action="write each name once")
    return names


def _pattern(read: PropertyReader, key: str) -> str:
    written = read.required(f"{key}.type", action=f"write {_PACKAGE}predicates.{_PREDICATE}")
    if written.removeprefix(f"{_PACKAGE}predicates.") != _PREDICATE:
        raise RefusedSettingError(
            key=f"{key}.type",
            why=f"{written} is a Java class that looks into records; {_PREDICATE} is built in",
        )
    return read.required(f"{key}.pattern", action="write a Java regular expression of topics")


def _stage(read: PropertyReader, key: str, predicates: dict[str, str]) -> TransformSettings:
    written = read.required(f"{key}.type", action=f"name a class; {_BUILT_IN}")
    known = {kind.value: kind for kind in TransformKind}
    kind = known.get(written.removeprefix(_PACKAGE))
    if kind is None:
        raise RefusedSettingError(key=f"{key}.type", why=f"{written} is a Java class; {_BUILT_IN}")
    name = read.text(f"{key}.predicate")
    negate = read.flag(f"{key}.negate", default=False)
    if name and name not in predicates:
        raise InvalidSettingError(
            key=f"{key}.predicate", problem=f"{name!r} is not among `predicates`", action="add it there"
        )
    if not name and f"{key}.negate" in read:
        raise InvalidSettingError(
            key=f"{key}.negate", problem="there is no predicate to negate", action=f"write {key}.predicate"
        )
    if not name and kind is TransformKind.DROP:
        raise InvalidSettingError(
            key=f"{key}.predicate",
            problem="without it nothing at all would be copied",
            action=f"name a {_PREDICATE}",
        )
    stage = TransformSettings(
        key=key,
        kind=kind,
        predicate=predicates.get(name, ""),
        predicate_key=f"predicates.{name}.pattern" if name else "",
        negate=negate,
    )
    return _with_own(read, stage)


def _with_own(read: PropertyReader, stage: TransformSettings) -> TransformSettings:
    """Return *stage* with the settings that only its class has."""
    key = stage.key
    match stage.kind:
        case TransformKind.RENAME:
            regex = _written(read, f"{key}.regex", "write a Java regular expression of topics")
            replacement = _written(read, f"{key}.replacement", "write the new name; $1 is the first group")
            return replace(stage, regex=regex, replacement=replacement)
        case TransformKind.INSERT_HEADER:
            literal = _written(read, f"{key}.value.literal", "write the header's value, or null")
            try:
                value = literal_bytes(literal)
            except ValueError as error:
                raise InvalidSettingError(
                    key=f"{key}.value.literal",
                    problem=f"{literal!r} would not be written as it is: {error}",
                    action="begin it with a letter, or write it as Java would",
                ) from error
            return replace(stage, header=read.required(f"{key}.header", action="name it"), value=value)
        case TransformKind.DROP_HEADERS:
            names = read.names(f"{key}.headers", ())
            if not names:
                raise InvalidSettingError(key=f"{key}.headers", problem="it is missing", action="name them")
            return replace(stage, headers=names)
        case TransformKind.DROP:
            return stage


def _written(read: PropertyReader, key: str, action: str) -> str:
    """Return the value of *key*, which may be empty but not absent."""
    if key not in read:
        raise InvalidSettingError(key=key, problem="it is missing", action=action)
    return read.text(key)
