"""The behaviour of a Confluent-compatible schema registry as a state machine over the records of its `_schemas` topic.

It follows Confluent's API reference and its page on migrating schemas, not Confluent's code. It checks neither the
syntax of schemas nor compatibility. `respond` decides on a request and appends records to `log`. A registry with the
same records in the same order has the same contents, so that `_schemas` itself can be copied.
"""

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

IMPORT, READ_WRITE = "IMPORT", "READWRITE"
MODES = {IMPORT, READ_WRITE, "READONLY"}


class RegistryError(Exception):
    """An error response."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)

    @property
    def status(self) -> int:
        return self.code // 100 if self.code > 999 else self.code


@dataclass
class RegistryModel:
    """The state of a registry.

    `versions` maps (context, subject, version) to the value of its record. Scopes are (context, subject or "").
    """

    versions: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    modes: dict[tuple[str, str], str] = field(default_factory=dict)
    configs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    log: list[tuple[dict[str, Any], dict[str, Any] | None]] = field(default_factory=list)
    page: int = 1000  # schema.search.max.limit
    # Indexes by context: the content of an id, the id of a content, and the versions of a subject.
    contents: dict[tuple[str, int], str] = field(default_factory=dict)
    ids: dict[tuple[str, str], int] = field(default_factory=dict)
    numbers: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    # The records of `_schemas`.

    def apply(self, key: dict[str, Any], value: dict[str, Any] | None) -> None:
        match key["keytype"]:
            case "SCHEMA":
                context, subject = split(key["subject"])
                version_key = context, subject, key["version"]
                if value is None:
                    self._forget(version_key)
                else:
                    self.versions[version_key] = value
                    self.highest[context] = max(self.highest.get(context, 0), value["id"])
                    self.contents[context, value["id"]] = content(value)
                    self.ids.setdefault((context, content(value)), value["id"])
                    self.numbers.setdefault((context, subject), set()).add(key["version"])
            case "MODE":
                _put(self.modes, split(key["subject"] or ""), value and value["mode"])
            case "CONFIG":
                _put(self.configs, split(key["subject"] or ""), value)

    def _forget(self, key: tuple[str, str, int]) -> None:
        value = self.versions.pop(key, None)
        if value is None:
            return
        self.numbers[key[:2]].discard(key[2])
        same = [
            other["id"]
            for (context, _, _), other in self.versions.items()
            if context == key[0] and content(other) == content(value)
        ]
        self.ids.pop((key[0], content(value)), None)
        if same:
            self.ids[key[0], content(value)] = same[0]
        if value["id"] not in same:
            self.contents.pop((key[0], value["id"]), None)

    def _append(self, keytype: str, subject: str, value: dict[str, Any] | None, **more: Any) -> None:
        key = {
            "keytype": keytype,
            "subject": subject or None,
            **more,
            "magic": 1 if keytype == "SCHEMA" else 0,
        }
        self.apply(key, value)
        self.log.append((key, value))

    # Requests.

    def respond(self, method: str, target: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Returns the status and JSON of the response."""
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            return 200, self._route(method, parts, query, body or {})
        except RegistryError as error:
            return error.status, {"error_code": error.code, "message": str(error)}

    def _route(self, method: str, parts: list[str], query: dict[str, str], body: dict[str, Any]) -> Any:
        with_deleted = query.get("deleted") == "true"
        match method, *parts:
            case "GET", "contexts":
                return sorted({".", *(context for context, _, _ in self.versions)})
            case "GET", "schemas":
                return self._page(query, with_deleted=with_deleted)
            case "GET", "schemas", "types":
                return ["AVRO", "JSON", "PROTOBUF"]
            case "GET", "schemas", "ids", schema_id:
                return self._schema(int(schema_id), query)
            case "GET", "schemas", "ids", schema_id, "versions":
                return self._versions_of(int(schema_id), query, with_deleted=with_deleted)
            case "GET", "subjects":
                names = {
                    join(context, subject)
                    for context, subject, version in self._shown(with_deleted=with_deleted)
                }
                return sorted(names)
            case "GET", "subjects", subject, "versions":
                return self._numbers(split(subject), with_deleted=with_deleted)
            case "GET", "subjects", subject, "versions", version:
                return self._version(split(subject), version, with_deleted=with_deleted)
            case "POST", "subjects", subject:
                return self._lookup(split(subject), body, with_deleted=with_deleted)
            case "POST", "subjects", subject, "versions":
                return {"id": self._register(split(subject), body)}
            case "DELETE", "subjects", subject:
                numbers = self._numbers(split(subject), with_deleted=query.get("permanent") == "true")
                for number in reversed(numbers):
                    self._delete(split(subject), number, permanently=query.get("permanent") == "true")
                return numbers
            case "DELETE", "subjects", subject, "versions", version:
                self._delete(split(subject), int(version), permanently=query.get("permanent") == "true")
                return int(version)
            case _, ("mode" | "config") as kind, *scope if len(scope) <= 1:
                return self._setting(method, kind, split("".join(scope)), query, body)
        raise RegistryError(404, "HTTP 404 Not Found")

    def _shown(self, *, with_deleted: bool) -> list[tuple[str, str, int]]:
        return sorted(key for key, value in self.versions.items() if with_deleted or not value["deleted"])

    def _page(self, query: dict[str, str], *, with_deleted: bool) -> list[dict[str, Any]]:
        context, prefix = split(query.get("subjectPrefix", ""))
        listed = [
            key
            for key in self._shown(with_deleted=with_deleted)
            if key[0] == context and key[1].startswith(prefix)
        ]
        begin = int(query.get("offset", "0"))
        limit = min(self.page, int(query.get("limit", self.page)))
        return [self._shown_version(key) for key in listed[begin : begin + limit]]

    def _shown_version(self, key: tuple[str, str, int]) -> dict[str, Any]:
        return {name: value for name, value in self.versions[key].items() if name != "deleted" and value}

    def _schema(self, schema_id: int, query: dict[str, str]) -> dict[str, Any]:
        context, _ = split(query.get("subject", ""))
        if (context, schema_id) in self.contents:
            for (other, _, _), value in self.versions.items():
                if other == context and value["id"] == schema_id:
                    return {
                        name: value[name] for name in ("schema", "schemaType", "references") if value[name]
                    }
        raise RegistryError(40403, f"Schema {schema_id} not found")

    def _versions_of(
        self, schema_id: int, query: dict[str, str], *, with_deleted: bool
    ) -> list[dict[str, Any]]:
        context, _ = split(query.get("subject", ""))
        shown = [
            {"subject": join(*key[:2]), "version": key[2]}
            for key in self._shown(with_deleted=with_deleted)
            if key[0] == context and self.versions[key]["id"] == schema_id
        ]
        if not shown:
            raise RegistryError(40403, f"Schema {schema_id} not found")
        return shown

    def _numbers(self, subject: tuple[str, str], *, with_deleted: bool) -> list[int]:
        matching = [
            number
            for number in sorted(self.numbers.get(subject, ()))
            if with_deleted or not self.versions[*subject, number]["deleted"]
        ]
        if not matching:
            raise RegistryError(40401, f"Subject '{join(*subject)}' not found.")
        return matching

    def _version(self, subject: tuple[str, str], version: str, *, with_deleted: bool) -> dict[str, Any]:
        numbers = self._numbers(subject, with_deleted=with_deleted)
        number = numbers[-1] if version in {"latest", "-1"} else int(version)
        if number not in numbers:
            raise RegistryError(40402, f"Version {version} not found.")
        return self._shown_version((*subject, number))

    def _lookup(
        self, subject: tuple[str, str], body: dict[str, Any], *, with_deleted: bool
    ) -> dict[str, Any]:
        self._numbers(subject, with_deleted=with_deleted)
        for number in reversed(self._numbers(subject, with_deleted=with_deleted)):
            if content(self.versions[*subject, number]) == content(body):
                return self._shown_version((*subject, number))
        raise RegistryError(40403, "Schema not found")

    def _mode(self, subject: tuple[str, str]) -> str:
        context = subject[0]
        return (
            self.modes.get(subject) or self.modes.get((context, "")) or self.modes.get((".", ""), READ_WRITE)
        )

    def _register(self, subject: tuple[str, str], body: dict[str, Any]) -> int:
        context, name = subject
        mode, schema_id = self._mode(subject), body.get("id", -1)
        if mode == "READONLY":
            raise RegistryError(42205, f"Subject {join(*subject)} is in read-only mode")
        if mode == IMPORT and schema_id < 1:
            raise RegistryError(42205, f"Subject {join(*subject)} is in import mode")
        if mode != IMPORT and schema_id > 0:
            raise RegistryError(42205, f"Subject {join(*subject)} is not in import mode")
        for reference in body.get("references") or ():
            if (*split(reference["subject"], context), reference["version"]) not in self.versions:
                raise RegistryError(42201, f"No schema reference found for {reference}")
        own = {number: self.versions[*subject, number] for number in self.numbers.get(subject, ())}
        same = [value for value in own.values() if content(value) == content(body) and not value["deleted"]]
        if same and (mode != IMPORT or same[-1]["id"] == schema_id):
            return int(same[-1]["id"])
        if mode == IMPORT:
            if self.contents.get((context, schema_id), content(body)) != content(body):
                raise RegistryError(42205, f"Overwrite new schema with id {schema_id} is not permitted.")
        else:
            schema_id = self.ids.get((context, content(body))) or self.highest.get(context, 0) + 1
        version = body.get("version", -1) if mode == IMPORT else -1
        version = version if version > 0 else max(own, default=0) + 1
        present = own.get(version)
        if present is not None and (present["id"] != schema_id or content(present) != content(body)):
            raise RegistryError(42205, f"Overwrite of version {version} is not permitted.")
        value = {
            "subject": join(context, name),
            "version": version,
            "id": schema_id,
            "schema": body["schema"],
            "schemaType": body.get("schemaType", "AVRO"),
            "references": body.get("references") or [],
            "metadata": body.get("metadata"),
            "ruleSet": body.get("ruleSet"),
            "deleted": False,
        }
        self._append("SCHEMA", join(context, name), value, version=version)
        return int(schema_id)

    def _delete(self, subject: tuple[str, str], version: int, *, permanently: bool) -> None:
        key = (*subject, version)
        value = self.versions.get(key)
        if self._mode(subject) == "READONLY":
            raise RegistryError(42205, f"Subject {join(*subject)} is in read-only mode")
        if value is None or (value["deleted"] and not permanently):
            raise RegistryError(40402, f"Version {version} not found.")
        if permanently and not value["deleted"]:
            raise RegistryError(
                40407, f"Version {version} was not deleted first before being permanently deleted"
            )
        for (context, _, _), other in self.versions.items():
            for reference in other["references"]:
                if (*split(reference["subject"], context), reference["version"]) == key and not other[
                    "deleted"
                ]:
                    raise RegistryError(42206, f"One or more references exist to the schema {key}")
        self._append(
            "SCHEMA",
            join(*subject),
            None if permanently else {**value, "deleted": True},
            version=version,
        )

    def _setting(
        self, method: str, kind: str, scope: tuple[str, str], query: dict[str, str], body: dict[str, Any]
    ) -> Any:
        held: dict[tuple[str, str], Any] = self.modes if kind == "mode" else self.configs
        subject = "" if scope == (".", "") else join(*scope)
        match kind, method:
            case "mode", "GET":
                if scope in held or scope == (".", "") or query.get("defaultToGlobal") == "true":
                    return {"mode": self._mode(scope)}
                raise RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")
            case "mode", "PUT":
                self._check_mode(scope, body["mode"], force=query.get("force") == "true")
                self._append("MODE", subject, {"mode": body["mode"]})
                return {"mode": body["mode"]}
            case "config", "GET":
                if scope not in held and scope != (".", ""):
                    raise RegistryError(
                        40408, f"Subject '{subject}' does not have subject-level compatibility configured"
                    )
                shown = dict(held.get(scope, {"compatibility": "BACKWARD"}))
                return {"compatibilityLevel": shown.pop("compatibility"), **shown}
            case "config", "PUT":
                self._append("CONFIG", subject, body)
                return body
            case _, "DELETE":
                if scope not in held:
                    raise RegistryError(40401, f"Subject '{subject}' not found.")
                self._append(kind.upper(), subject, None)
                return {}
        raise RegistryError(405, "HTTP 405 Method Not Allowed")

    def _check_mode(self, scope: tuple[str, str], mode: str, *, force: bool) -> None:
        if mode not in MODES:
            raise RegistryError(42204, f"Invalid mode {mode}")
        context, subject = scope
        holds = any(key[0] == context and subject in {"", key[1]} for key in self.versions)
        if mode == IMPORT and self._mode(scope) != IMPORT and holds and not force:
            raise RegistryError(42205, "Cannot import since found existing subjects")


def split(subject: str, context: str = ".") -> tuple[str, str]:
    """Returns context and name of a subject."""
    if subject.startswith(":."):
        context, _, name = subject[1:].partition(":")
        return context, name
    return context, subject


def join(context: str, name: str) -> str:
    return name if context == "." else f":{context}:{name}"


def content(value: dict[str, Any]) -> str:
    """Returns the part of a record that an id identifies."""
    return json.dumps(
        [
            value["schema"],
            value.get("schemaType") or "AVRO",
            *(value.get(name) or None for name in ("references", "metadata", "ruleSet")),
        ],
        sort_keys=True,
    )


def _put(settings: dict[tuple[str, str], Any], scope: tuple[str, str], value: Any) -> None:
    if value is None:
        settings.pop(scope, None)
    else:
        settings[scope] = value
