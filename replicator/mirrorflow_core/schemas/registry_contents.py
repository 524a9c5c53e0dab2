"""Holds what is read of a Confluent-compatible schema registry, and parses its responses.

A registry has subjects, each a list of numbered versions; a version refers to a schema by its id, which producers write into
records. Ids are unique within a context. The subject `:.east:orders-value` is `orders-value` of context `.east`; all others
are of the default context `.`. Source: Confluent's API reference of the Schema Registry.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

DEFAULT_CONTEXT: Final = "."
AVRO: Final = "AVRO"
PROTOBUF: Final = "PROTOBUF"
READ_WRITE, READ_ONLY, IMPORT = "READWRITE", "READONLY", "IMPORT"
# Optional parts of a version that belong to its identity, under the names of the API.
_RULES: Final = ("metadata", "ruleSet")
# The field has one name in responses and another one in requests.
_COMPATIBILITY_READ, _COMPATIBILITY_WRITTEN = "compatibilityLevel", "compatibility"


class RegistryResponseError(ValueError):
    """A response of a registry is not as its API describes."""


class SubjectName(NamedTuple):
    """A subject of a context. With an empty *name* it is the scope of settings that hold for the whole context."""

    context: str
    name: str

    @property
    def qualified(self) -> str:
        """The name in requests and messages; "" for the whole default context."""
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"


def parse_subject(text: str, context: str = DEFAULT_CONTEXT) -> SubjectName:
    """Returns the subject that *text* names; one without a context is of *context*."""
    if text.startswith(":.") and (end := text.find(":", 1)) > 0:
        return SubjectName(text[1:end], text[end + 1 :])
    return SubjectName(context, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReference:
    """A reference of a schema to a version of a subject, under the name that its text uses."""

    name: str
    subject: SubjectName
    version: int


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """One version of a subject. *rules* is the JSON text of its metadata and rule set; None without any."""

    subject: SubjectName
    version: int
    schema_id: int
    text: str
    schema_type: str = AVRO
    references: tuple[SchemaReference, ...] = ()
    rules: str | None = None
    is_deleted: bool = False  # softly: its id still resolves

    @property
    def key(self) -> tuple[SubjectName, int]:
        return self.subject, self.version

    @cached_property
    def content(self) -> tuple[object, ...]:
        """What the id stands for: equal for texts that differ in the order of JSON's keys or in white space only."""
        return self.schema_type, _canonical(self.schema_type, self.text), self.references, self.rules


def _canonical(schema_type: str, text: str) -> str:
    if schema_type == PROTOBUF:
        return text.strip()
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # no JSON, or a number or a nesting that Python refuses
        return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryContents:
    """What was read of one registry.

    *modes* has the mode of each context that was read. *compatibility* (JSON text) and *subject_modes* have settings of subjects
    that differ from their context's. *settings_read* names the scopes whose settings were read: only these are compared.
    """

    versions: Mapping[tuple[SubjectName, int], SchemaVersion] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    subject_modes: Mapping[SubjectName, str] = field(default_factory=dict)
    compatibility: Mapping[SubjectName, str] = field(default_factory=dict)
    settings_read: frozenset[SubjectName] = frozenset()

    def highest_ids(self) -> dict[str, int]:
        """Returns the highest id of each context that has versions."""
        highest: dict[str, int] = {}
        for version in self.versions.values():
            context = version.subject.context
            highest[context] = max(highest.get(context, 0), version.schema_id)
        return highest


def parse_version(value: Any) -> SchemaVersion:
    """Returns the version in a response. Raises RegistryResponseError."""
    try:
        subject = parse_subject(_text(value["subject"]))
        return SchemaVersion(
            subject=subject,
            version=_whole(value["version"]),
            schema_id=_whole(value["id"]),
            text=_text(value["schema"]),
            schema_type=_text(value.get("schemaType") or AVRO),
            references=tuple(
                SchemaReference(
                    name=_text(reference["name"]),
                    subject=parse_subject(_text(reference["subject"]), subject.context),
                    version=_whole(reference["version"]),
                )
                for reference in value.get("references") or ()
            ),
            rules=_dumped({name: value[name] for name in _RULES if value.get(name)}),
            is_deleted=value.get("deleted") is True,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RegistryResponseError(f"a version lacks {error}") from None


def registration_of(version: SchemaVersion) -> dict[str, Any]:
    """Returns the body of the request that registers *version* under its own id and number."""
    body: dict[str, Any] = {"schema": version.text, "id": version.schema_id, "version": version.version}
    # As other clients do: registries that know Avro only accept no schemaType.
    if version.schema_type != AVRO:
        body["schemaType"] = version.schema_type
    if version.references:
        body["references"] = [
            {
                "name": reference.name,
                # A name without a context is of the referring subject's.
                "subject": reference.subject.name
                if reference.subject.context == version.subject.context
                else f":{reference.subject.context}:{reference.subject.name}",
                "version": reference.version,
            }
            for reference in version.references
        ]
    return body | ({} if version.rules is None else json.loads(version.rules))


def parse_compatibility(value: Any) -> str | None:
    """Returns the compatibility settings in a response as JSON text; None if there are none. Raises RegistryResponseError."""
    if not isinstance(value, dict):
        raise RegistryResponseError("compatibility settings are no JSON object")
    settings = {
        _COMPATIBILITY_WRITTEN if name == _COMPATIBILITY_READ else name: setting
        for name, setting in value.items()
        if setting is not None
    }
    # The default, which some registries return and others leave out.
    if settings.get("normalize") is False:
        del settings["normalize"]
    return _dumped(settings)


def _dumped(value: Mapping[str, Any]) -> str | None:
    return json.dumps(value, sort_keys=True) if value else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RegistryResponseError(f"{value!r:.40} is no text")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RegistryResponseError(f"{value!r:.40} is no whole number")
    return value
