"""The requests to a registry: those that read it, and those that carry out a step of a plan. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from mirrorflow_core.schemas.registry_contents import IMPORT, SubjectName, registration_of
from mirrorflow_core.schemas.schema_plan import (
    DeleteVersion,
    RegisterVersion,
    SchemaStep,
    SetCompatibility,
    SetContextMode,
    SetSubjectMode,
)

# Versions in one response. Confluent's default and maximum (schema.search.max.limit); a registry may return fewer.
PAGE_VERSIONS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryRequest:
    """One request; *path* with its query. A response with one of *accepts* counts as success, as any 2xx does."""

    method: str = "GET"
    path: str
    body: Mapping[str, Any] | None = None
    accepts: tuple[int, ...] = ()


def versions_request(context: str, *, with_deleted: bool, offset: int) -> RegistryRequest:
    """Returns the request for one page of the versions of *context*."""
    query = {
        "subjectPrefix": SubjectName(context, "").qualified,
        "deleted": "true" if with_deleted else "false",
        "offset": str(offset),
        "limit": str(PAGE_VERSIONS),
    }
    return RegistryRequest(
        path=f"/schemas?{urlencode({key: value for key, value in query.items() if value})}"
    )


def settings_request(kind: str, scope: SubjectName) -> RegistryRequest:
    """Returns the request for the `config` or the `mode` that *scope* has itself; 404 if it has none."""
    return RegistryRequest(path=_setting_path(kind, scope))


def schema_request(context: str, schema_id: int) -> RegistryRequest:
    """Returns the request for the schema with an id; 404 if *context* has none."""
    subject = SubjectName(context, "").qualified
    query = f"?{urlencode({'subject': subject})}" if subject else ""
    return RegistryRequest(path=f"/schemas/ids/{schema_id}{query}")


def subjects_request(context: str, schema_id: int) -> RegistryRequest:
    """Returns the request for the subjects with a version of an id, deleted ones too; 404 if *context* has no such schema."""
    subject = SubjectName(context, "").qualified
    query = {"deleted": "true"} | ({"subject": subject} if subject else {})
    return RegistryRequest(path=f"/schemas/ids/{schema_id}/versions?{urlencode(query)}")


def requests_of(step: SchemaStep) -> tuple[RegistryRequest, ...]:
    """Returns the requests that carry out *step*, in their order. Each may be repeated after a lost response."""
    match step:
        case SetContextMode(context):
            path = _setting_path("mode", SubjectName(context, ""))
            return (RegistryRequest(method="PUT", path=path, body={"mode": IMPORT}),)
        case SetSubjectMode(subject, None):
            return (RegistryRequest(method="DELETE", path=_setting_path("mode", subject), accepts=(404,)),)
        case SetSubjectMode(subject, mode):
            return (RegistryRequest(method="PUT", path=_setting_path("mode", subject), body={"mode": mode}),)
        case RegisterVersion(version):
            path = f"/subjects/{quote(version.subject.qualified, safe='')}/versions"
            return (RegistryRequest(method="POST", path=path, body=registration_of(version)),)
        case DeleteVersion(subject, version_number, permanently):
            path = f"/subjects/{quote(subject.qualified, safe='')}/versions/{version_number}"
            delete = RegistryRequest(method="DELETE", path=path, accepts=(404,))
            last = RegistryRequest(method="DELETE", path=f"{path}?permanent=true", accepts=(404,))
            return (delete, last) if permanently else (delete,)
        case SetCompatibility(scope, settings):
            path = _setting_path("config", scope)
            if settings is None:
                return (RegistryRequest(method="DELETE", path=path, accepts=(404,)),)
            return (RegistryRequest(method="PUT", path=path, body=json.loads(settings)),)


def describe(step: SchemaStep) -> str:
    """Returns what *step* does, as the continuation of "would"."""
    match step:
        case SetContextMode(context):
            return f"set the mode of context {context} to IMPORT"
        case SetSubjectMode(subject, None):
            return f"remove the mode of {subject.qualified}"
        case SetSubjectMode(subject, mode):
            return f"set the mode of {subject.qualified} to {mode}"
        case RegisterVersion(version):
            return f"register version {version.version} of {version.subject.qualified} with id {version.schema_id}"
        case DeleteVersion(subject, version_number, permanently):
            how = "permanently" if permanently else "softly"
            return f"delete version {version_number} of {subject.qualified} {how}"
        case SetCompatibility(scope, None):
            return f"remove the compatibility settings of {_scope(scope)}"
        case SetCompatibility(scope, settings):
            return f"set the compatibility settings of {_scope(scope)} to {settings}"


def _scope(scope: SubjectName) -> str:
    return scope.qualified if scope.name else f"context {scope.context}"


def _setting_path(kind: str, scope: SubjectName) -> str:
    name = scope.qualified
    return f"/{kind}/{quote(name, safe='')}" if name else f"/{kind}"
