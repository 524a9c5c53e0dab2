"""Synchronizes models of registries by plans, without HTTP."""

from mirrorflow_core.schemas.registry_contents import (
    RegistryContents,
    SubjectName,
    parse_compatibility,
    parse_version,
)
from mirrorflow_core.schemas.registry_requests import requests_of
from mirrorflow_core.schemas.schema_plan import SchemaPlan, plan_schemas
from mirrorflow_core.schemas.subject_mapping import SubjectMapping
from tests.harness.schema_registry.registry_model import RegistryModel

SAME = SubjectMapping(contexts={".": "."})


def contents(model: RegistryModel, *contexts: str) -> RegistryContents:
    """Returns the contents of *contexts* of *model*, or of the default context if none is given."""
    shown = contexts or (".",)
    versions = [parse_version(value) for (context, _, _), value in model.versions.items() if context in shown]
    scopes = {SubjectName(context, "") for context in shown} | {version.subject for version in versions}
    compatibility = {}
    for scope in scopes:
        path = f"/config/{scope.qualified}" if scope.qualified else "/config"
        status, body = model.respond("GET", path)
        if status == 200 and (text := parse_compatibility(body)) is not None:
            compatibility[scope] = text
    return RegistryContents(
        versions={version.key: version for version in versions},
        modes={context: model._mode((context, "")) for context in shown},
        subject_modes={scope: model.modes[scope] for scope in scopes if scope.name and scope in model.modes},
        compatibility=compatibility,
        settings_read=frozenset(scopes),
    )


def plan(source: RegistryModel, target: RegistryModel, mapping: SubjectMapping = SAME) -> SchemaPlan:
    return plan_schemas(
        contents(source, *mapping.contexts), contents(target, *mapping.contexts.values()), mapping
    )


def synchronize(
    source: RegistryModel, target: RegistryModel, mapping: SubjectMapping = SAME, *, requests: int = 10_000
) -> SchemaPlan:
    """Sends at most *requests* requests of the plan, each of which must succeed, and returns the plan."""
    planned = plan(source, target, mapping)
    wanted = [request for step in planned.steps for request in requests_of(step)]
    for request in wanted[:requests]:
        status, body = target.respond(request.method, request.path, dict(request.body or {}))
        assert status == 200 or status in request.accepts, (request, body)
        if request.method == "POST":
            assert request.body is not None
            assert body == {"id": request.body["id"]}
    return planned


def register(
    model: RegistryModel,
    subject: str,
    schema: str = '"string"',
    references: list[dict[str, object]] | None = None,
) -> int:
    """Registers a schema as a serializer does, and returns its id."""
    body = {"schema": schema} | ({"references": references} if references else {})
    status, response = model.respond("POST", f"/subjects/{subject}/versions", body)
    assert status == 200, response
    return int(response["id"])


def request(model: RegistryModel, method: str, path: str, **body: object) -> object:
    status, response = model.respond(method, path, body)
    assert status == 200, response
    return response
