"""Transformations of Kafka Connect that are built in, and what they make of a topic: its name, and its records' headers.

RegexRouter, Filter, InsertHeader, DropHeaders, with or without the predicate TopicNameMatches. Each looks at a record's topic
alone, so what becomes of a topic is decided once and not for each record. As in Java they see the name that the replication
policy gives, in the order of `transforms`. Unlike in Java heartbeats keep their name: hops and ages are read from it.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.flow.java_replacement import Replacement
from mirrorflow_replicator.flow.patterns import compile_pattern
from mirrorflow_replicator.flow.policy import ReplicationPolicy
from mirrorflow_replicator.settings import TransformKind, TransformSettings

Headers = tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderEdits:
    """What becomes of a record's headers: first all values in base64, if so; then the *steps*, in order.

    A step with a value, which may be None, adds a header with the only name; one without removes all headers of its names.
    """

    in_base64: bool = False
    steps: tuple[tuple[frozenset[bytes], tuple[bytes | None, ...]], ...] = ()

    def __bool__(self) -> bool:
        return self.in_base64 or bool(self.steps)

    def edited(self, headers: Headers) -> Headers:
        """*headers* as the target is to have them."""
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
class Route:
    """What becomes of a topic. *dropped_by* is the transformation that drops its records, "" if none does."""

    name: str
    dropped_by: str = ""
    edits: HeaderEdits = NO_EDITS


class Transforms:
    """The chain of one connector. Raises InvalidSettingError for an expression or a replacement that is none."""

    def __init__(self, stages: Sequence[TransformSettings] = (), *, headers_in_base64: bool = False) -> None:
        self._stages = tuple(_Stage(stage) for stage in stages)
        self._headers_in_base64 = headers_in_base64
        self.renames = any(stage.kind is TransformKind.RENAME for stage in stages)

    def route(self, topic: str, *, renames: bool = True) -> Route:
        """What becomes of *topic*, which has the policy's name; *renames* False: it keeps its name."""
        name = topic
        steps: list[tuple[frozenset[bytes], tuple[bytes | None, ...]]] = []
        for stage in self._stages:
            settings = stage.settings
            if not stage.applies(name):
                continue
            match settings.kind:
                case TransformKind.DROP:
                    return Route(name=name, dropped_by=settings.key)
                case TransformKind.RENAME if renames:
                    name = stage.renamed(name)
                case TransformKind.INSERT_HEADER:
                    steps.append((frozenset({settings.header.encode()}), (settings.value,)))
                case TransformKind.DROP_HEADERS:
                    steps.append((frozenset(header.encode() for header in settings.headers), ()))
        return Route(name=name, edits=HeaderEdits(in_base64=self._headers_in_base64, steps=tuple(steps)))


class Naming:
    """What topics of one flow are called on the target, and what becomes of their records on the way."""

    def __init__(self, policy: ReplicationPolicy, source_alias: str, transforms: Transforms) -> None:
        self._policy = policy
        self._source_alias = source_alias
        self._transforms = transforms

    def route(self, topic: str) -> Route:
        """What becomes of *topic* of the source."""
        return self._transforms.route(
            self._policy.remote_topic(self._source_alias, topic),
            renames=not self._policy.is_heartbeats_topic(topic),
        )

    def target_topic(self, topic: str) -> str:
        """The name of the copy, also where no record is copied."""
        return self.route(topic).name

    def header_edits(self, topic: str) -> HeaderEdits:
        """What becomes of the headers of its records."""
        return self.route(topic).edits

    def obstacle(self, topic: str) -> str:
        """Why transformations leave *topic* no place on the target, half a sentence; "" if they do not."""
        if not self._transforms.renames:
            return ""
        name = self.target_topic(topic)
        if name == self._policy.remote_topic(self._source_alias, topic):
            return ""
        if self._policy.is_internal_topic(name) or self._policy.is_heartbeats_topic(name):
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
                self._replacement = Replacement(settings.replacement, self._regex)
            except ValueError as error:
                raise InvalidSettingError(
                    key=f"{settings.key}.replacement",
                    problem=f"{settings.replacement!r} cannot be used: {error}",
                    action="write what Java's Matcher.replaceFirst takes",
                ) from error

    def applies(self, name: str) -> bool:
        if self._predicate is None:
            return True
        return (self._predicate.fullmatch(name) is not None) != self.settings.negate

    def renamed(self, name: str) -> str:
        """As RegexRouter: the whole name must match, and then the first place that matches is replaced."""
        if self._regex.fullmatch(name) is None:
            return name
        found = self._regex.search(name)
        return name if found is None else self._replacement.first(found)
