"""Parses and applies Kafka Connect's transformations: the name of a topic's copy, and its records' headers.

RegexRouter, Filter, InsertHeader and DropHeaders are built in, each for all topics or for those of a
TopicNameMatches. All others read the content of records, or need a schema that MM2's bytes do not have, and
are refused by name. The built-in ones depend on the record's topic alone, so the result is decided once per
topic and not per record. As in Java, they receive the name from the replication policy, in the order of
`transforms`. Unlike in Java, heartbeats keep their name, because hops and ages are read from it.
"""

import base64
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.patterns import Replacement, compile_pattern
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.replication_policy import ReplicationPolicy
from mirrorflow_core.settings import TransformKind, TransformSettings

NULL = "null"
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_LOOKS_DATED = re.compile(r"[0-9]+-[-+0-9]")
_DATE_LENGTH = len("2026-01-31")  # Java accepts no other length for a date
_DELIMITERS = frozenset(':,{}[]"\\')
_FLOAT_DIGITS_MAX = 9  # enough to distinguish any two floats
_LONG = 2**63
Headers = tuple[tuple[bytes, bytes | None], ...]
TRANSFORMS_PACKAGE = "org.apache.kafka.connect.transforms."
_PREDICATE = "TopicNameMatches"
_BUILT_IN = "RegexRouter, Filter, InsertHeader and DropHeaders are built in"


def literal_bytes(text: str) -> bytes | None:
    """Returns the header's value; None for `null`. Raises ValueError with the reason for a text that Java would rewrite."""
    if text == NULL:
        return None
    if text[:1] in {"[", "{"}:
        raise ValueError("Java parses it as a list or a map and reformats it")
    if text[:1].isdigit() or text[:1] in {"+", "-"}:
        if any(character in _DELIMITERS for character in text) or not text.isascii():
            raise ValueError("Java may parse its beginning as a number or a time and drop the rest")
        if len(text) == _DATE_LENGTH and _LOOKS_DATED.match(text):
            raise ValueError("Java may parse it as a date and reformat it in its time zone")
        written = _as_number(text)
        if written != text:
            raise ValueError(f"Java parses it as a number and writes {written}")
    return text.encode()


def _as_number(text: str) -> str:
    """Returns what Java writes for a number; *text* itself if it is none."""
    if not _NUMBER.fullmatch(text):
        return text
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    if number == number.to_integral_value():
        return str(int(number)) if abs(number) < _LONG else "it in another way"
    return _as_float(float(number))


def _as_float(number: float) -> str:
    """Returns `Float.toString` where its result has only digits and a point."""
    try:
        single = struct.pack(">f", number)
    except OverflowError:
        return "it in another way"
    if not 1e-3 <= abs(number) < 1e7:
        return "it in another way"
    for digits in range(1, _FLOAT_DIGITS_MAX + 1):
        text = f"{number:.{digits}g}"
        if struct.pack(">f", float(text)) == single:
            plain = f"{Decimal(text):f}"
            return plain if "." in plain else f"{plain}.0"
    return "it in another way"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderEdits:
    """The header edits of a topic: first base64 for all values, if `in_base64`; then the `steps`, in order.

    A step with a value, which may be None, adds a header with its only name. One without removes all headers
    with its names.
    """

    in_base64: bool = False
    steps: tuple[tuple[frozenset[bytes], tuple[bytes | None, ...]], ...] = ()

    def __bool__(self) -> bool:
        return self.in_base64 or bool(self.steps)

    def edited(self, headers: Headers) -> Headers:
        """Returns *headers* with the edits applied."""
        if self.in_base64:
            headers = tuple(
                (name, None if value is None else base64.b64encode(value)) for name, value in headers
            )
        for names, added in self.steps:
            if added:
                headers = (*headers, *((name, added[0]) for name in names))
            else:
                headers = tuple(header for header in headers if header[0] not in names)
        return headers


NO_EDITS = HeaderEdits()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameRule:
    """The result for a topic. `dropped_by` is the transformation that drops its records; None: none."""

    name: str
    dropped_by: str | None = None
    edits: HeaderEdits = NO_EDITS


class Transforms:
    """The transformations of one connector. Raises InvalidSettingError for an invalid expression or replacement."""

    def __init__(self, stages: Sequence[TransformSettings] = (), *, headers_in_base64: bool = False) -> None:
        self._stages = tuple(_Stage(stage) for stage in stages)
        self._headers_in_base64 = headers_in_base64
        self._given = (tuple(stages), headers_in_base64)
        self.renames = any(stage.kind is TransformKind.RENAME for stage in stages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transforms) and self._given == other._given

    def __hash__(self) -> int:
        return hash(self._given)

    def route(self, topic: str, *, renames: bool = True) -> RenameRule:
        """Returns the result for *topic*, named by the policy; *renames* False: it keeps its name."""
        name = topic
        steps: list[tuple[frozenset[bytes], tuple[bytes | None, ...]]] = []
        for stage in self._stages:
            settings = stage.settings
            if not stage.applies(name):
                continue
            match settings.kind:
                case TransformKind.DROP:
                    return RenameRule(name=name, dropped_by=settings.key)
                case TransformKind.RENAME if renames:
                    name = stage.renamed(name)
                case TransformKind.INSERT_HEADER:
                    assert settings.header is not None, "an InsertHeader names its header"
                    steps.append((frozenset({settings.header.encode()}), (settings.value,)))
                case TransformKind.DROP_HEADERS:
                    steps.append((frozenset(header.encode() for header in settings.headers), ()))
        return RenameRule(name=name, edits=HeaderEdits(in_base64=self._headers_in_base64, steps=tuple(steps)))


@dataclass(frozen=True, slots=True)
class TopicTransforms:
    """Names and header edits for the topics of one flow: policy and transformations combined."""

    policy: ReplicationPolicy
    source_alias: str
    transforms: Transforms = Transforms()

    @property
    def keeps_names(self) -> bool:
        """Whether each copy has the name of its topic."""
        return not self.policy.remote_topic(self.source_alias, "") and not self.transforms.renames

    def route(self, topic: str) -> RenameRule:
        """Returns the result for *topic* of the source."""
        return self.transforms.route(
            self.policy.remote_topic(self.source_alias, topic),
            renames=not self.policy.is_heartbeats_topic(topic),
        )

    def target_topic(self, topic: str) -> str:
        """Returns the name of the copy, also if no record is copied."""
        return self.route(topic).name

    def header_edits(self, topic: str) -> HeaderEdits:
        """Returns the header edits for the records of *topic*."""
        return self.route(topic).edits

    def obstacle(self, topic: str) -> str | None:
        """Returns a clause why the transformations prevent a copy of *topic*; None if they do not."""
        if not self.transforms.renames:
            return None
        name = self.target_topic(topic)
        if name == self.policy.remote_topic(self.source_alias, topic):
            return None
        if self.policy.is_internal_topic(name) or self.policy.is_heartbeats_topic(name):
            return f"transforms would copy it into {name}, which programs keep their books in"
        return None


class _Stage:
    def __init__(self, settings: TransformSettings) -> None:
        self.settings = settings
        self._predicate = None
        if settings.predicate is not None:
            key = settings.predicate_key
            assert key is not None, "a predicate has the key of its pattern"
            self._predicate = compile_pattern(key, settings.predicate)
        if settings.kind is TransformKind.RENAME:
            assert settings.regex is not None, "a RegexRouter has an expression"
            assert settings.replacement is not None, "a RegexRouter has a replacement"
            self._regex = compile_pattern(f"{settings.key}.regex", settings.regex)
            try:
                self._replacement = Replacement(settings.replacement, self._regex.pattern)
            except ValueError as error:
                raise InvalidSettingError(
                    key=f"{settings.key}.replacement",
                    problem=f"{settings.replacement!r} cannot be used: {error}",
                    action="write what Java's Matcher.replaceFirst takes",
                ) from error

    def applies(self, name: str) -> bool:
        if self._predicate is None:
            return True
        return self._predicate.matches(name) != self.settings.negate

    def renamed(self, name: str) -> str:
        """Returns the new name: if all of *name* matches, its first match is replaced (RegexRouter)."""
        if not self._regex.matches(name):
            return name
        match = self._regex.find(name)
        return name if match is None else self._replacement.first(match)


def read_transforms(read: PropertyReader) -> tuple[TransformSettings, ...]:
    """Returns the transformations in their order.

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
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise InvalidSettingError(key=key, problem=f"{twice} is there twice", action="write each name once")
    return names


def _pattern(read: PropertyReader, key: str) -> str:
    written = read.required(f"{key}.type", action=f"write {TRANSFORMS_PACKAGE}predicates.{_PREDICATE}")
    if written.removeprefix(f"{TRANSFORMS_PACKAGE}predicates.") != _PREDICATE:
        raise RefusedSettingError(
            key=f"{key}.type",
            why=f"{written} is a Java class that looks into records; {_PREDICATE} is built in",
        )
    return read.required(f"{key}.pattern", action="write a Java regular expression of topics")


def _stage(read: PropertyReader, key: str, predicates: dict[str, str]) -> TransformSettings:
    written = read.required(f"{key}.type", action=f"name a class; {_BUILT_IN}")
    known = {kind.value: kind for kind in TransformKind}
    kind = known.get(written.removeprefix(TRANSFORMS_PACKAGE))
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
        predicate=predicates.get(name),
        predicate_key=f"predicates.{name}.pattern" if name else None,
        negate=negate,
    )
    return _with_own(read, stage)


def _with_own(read: PropertyReader, stage: TransformSettings) -> TransformSettings:
    """Returns *stage* with the settings that only its class has."""
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
    """Returns the value of *key*, which may be empty but not absent."""
    if key not in read:
        raise InvalidSettingError(key=key, problem="it is missing", action=action)
    return read.text(key)
