"""Applies built-in transformations of Kafka Connect to a topic: its name and the headers of its records.

RegexRouter, Filter, InsertHeader and DropHeaders are built in, with or without the predicate
TopicNameMatches. They depend on the record's topic alone, so the result is decided once per topic and not per
record. As in Java, they receive the name from the replication policy, in the order of `transforms`. Unlike in
Java, heartbeats keep their name, because hops and ages are read from it.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.replacement_strings import Replacement
from mirrorflow_core.naming.patterns import compile_pattern
from mirrorflow_core.naming.replication_policy import ReplicationPolicy
from mirrorflow_core.settings import TransformKind, TransformSettings

Headers = tuple[tuple[bytes, bytes | None], ...]


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
        """Return *headers* with the edits applied."""
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
    """The result for a topic. `dropped_by` is the transformation that drops its records; "": none."""

    name: str
    dropped_by: str = ""
    edits: HeaderEdits = NO_EDITS


class Transforms:
    """The transformations of one connector.

    Raises InvalidSettingError for an invalid expression or replacement.
    """

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
        """Return the result for *topic*, named by the policy; *renames* False: it keeps its name."""
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
                    steps.append((frozenset({settings.header.encode()}), (settings.value,)))
                case TransformKind.DROP_HEADERS:
                    steps.append((frozenset(header.encode() for header in settings.headers), ()))
        return RenameRule(name=name, edits=HeaderEdits(in_base64=self._headers_in_base64, steps=tuple(steps)))


@dataclass(frozen=True, slots=True)
class TopicTransforms:
    """Names and header edits for the topics of one flow: policy and transformations combined."""

    policy: ReplicationPolicy
    source_alias: str
    transforms: Transforms

    def route(self, topic: str) -> RenameRule:
        """Return the result for *topic* of the source."""
        return self.transforms.route(
            self.policy.remote_topic(self.source_alias, topic),
            renames=not self.policy.is_heartbeats_topic(topic),
        )

    def target_topic(self, topic: str) -> str:
        """Return the name of the copy, also if no record is copied."""
        return self.route(topic).name

    def header_edits(self, topic: str) -> HeaderEdits:
        """Return the header edits for the records of *topic*."""
        return self.route(topic).edits

    def obstacle(self, topic: str) -> str:
        """Return a clause why the transformations prevent a copy of *topic*; "" if they do not."""
        if not self.transforms.renames:
            return ""
        name = self.target_topic(topic)
        if name == self.policy.remote_topic(self.source_alias, topic):
            return ""
        if self.policy.is_internal_topic(name) or self.policy.is_heartbeats_topic(name):
            return f"transforms would copy it into {name}, which programs keep their books in"
        return ""


class _Stage:
    def __init__(self, settings: TransformSettings) -> None:
        self.settings = settings
        self._predicate = (
            compile_pattern(settings.predicate_key, settings.predicate) if settings.predicate else None
        )
        if settings.kind is TransformKind.RENAME:
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
        """Return the new name: if all of *name* matches, its first match is replaced (RegexRouter)."""
        if not self._regex.matches(name):
            return name
        found = self._regex.find(name)
        return name if found is None else self._replacement.first(found)
