"""Synchronizes two registries over HTTP: requests, writes and errors, with test registries in this process."""

import asyncio
import base64
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.errors import (
    IdsNotKeptError,
    InvalidSettingError,
    RegistryDeniedError,
    RegistryError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from mirrorflow_core.schemas.schema_plan import SchemaPlan, plan_schemas
from mirrorflow_core.schemas.subject_mapping import RESERVED_SUBJECT
from mirrorflow_core.settings import RegistrySettings, SchemaSettings
from mirrorflow_kafka.registry.registry_client import RegistryClient, _parsed, endpoints
from mirrorflow_kafka.registry.registry_reader import RegistryReader
from mirrorflow_replicator.connectors import schema_sync
from mirrorflow_replicator.connectors.schema_sync import REFUSED_STEPS_MAX, SchemaSync
from tests.harness.schema_registry.registry_in_process import RunningRegistry
from tests.harness.schema_registry.registry_model import RegistryModel
from tests.unit.kafka.certificates import authority, signed

URL = "schema.registry.url"


@pytest.fixture
def source() -> Iterator[RunningRegistry]:
    registry = RunningRegistry()
    yield registry
    registry.close()


@pytest.fixture
def target() -> Iterator[RunningRegistry]:
    registry = RunningRegistry()
    yield registry
    registry.close()


def settings_of(source: str, target: str, **properties: str) -> SchemaSettings:
    return SchemaSettings(
        name="MirrorSchemaConnector",
        flow="east->west",
        source_alias="east",
        target_alias="west",
        source=RegistrySettings(alias="east", side="source", properties={URL: source}),
        target=RegistrySettings(alias="west", side="target", properties={URL: target, **properties}),
        subjects=(".*",),
        contexts={".": "."},
    )


def synchronize(settings: SchemaSettings) -> SchemaPlan:
    async def once() -> SchemaPlan:
        with SchemaSync(settings) as sync:
            plan = await sync.plan()
            await sync.apply(plan)
            assert not (await sync.plan()).steps
            return plan

    return asyncio.run(once())


def register(model: RegistryModel, subject: str, schema: str, **more: Any) -> None:
    assert model.respond("POST", f"/subjects/{subject}/versions", {"schema": schema, **more})[0] == 200


def test_all_schemas_and_settings_are_copied_from_paged_responses(
    source: RunningRegistry, target: RunningRegistry
):
    source.model.page = target.model.page = 3
    for number in range(10):
        register(source.model, f"s{number}", f'"{number}"')
    reference = {"name": "R", "subject": "s9", "version": 1}
    register(source.model, "a%2Fb", '"x"', references=[reference], schemaType="PROTOBUF")
    source.model.respond("DELETE", "/subjects/s3/versions/1")
    source.model.respond("PUT", "/config/s4", {"compatibility": "FULL"})
    source.model.respond("PUT", "/mode/s5", {"mode": "READONLY"})

    plan = synchronize(settings_of(source.url, target.url))

    assert (plan.subjects, plan.versions) == (11, 11)
    assert target.model.versions == source.model.versions
    assert target.model.configs == source.model.configs
    assert target.model.modes == {(".", ""): "IMPORT", (".", "s5"): "READONLY"}


def test_two_directions_that_begin_at_the_same_time_report_a_conflict(
    source: RunningRegistry, target: RunningRegistry
):
    directions = settings_of(source.url, target.url), settings_of(target.url, source.url)

    async def begin() -> list[SchemaPlan]:
        syncs = [SchemaSync(settings) for settings in directions]
        plans = [await sync.plan() for sync in syncs]
        for sync, plan in zip(syncs, plans, strict=True):
            await sync.apply(plan)
        again = [await sync.plan() for sync in syncs]
        for sync in syncs:
            sync.__exit__(None, None, None)
        return again

    plans = asyncio.run(begin())

    assert [[conflict.kind.value for conflict in plan.conflicts] for plan in plans] == [["BothAreCopies"]] * 2
    assert "spec.schemas.contexts" in plans[0].conflicts[0].message


def test_a_new_schema_is_found_by_its_id(source: RunningRegistry, target: RunningRegistry):
    register(source.model, "a", '"int"')

    async def found() -> list[bool]:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            await sync.plan()
            before = await sync.has_new_schema()
            register(source.model, "b", '"long"')
            return [before, await sync.has_new_schema()]

    assert asyncio.run(found()) == [False, True]


def test_an_id_that_no_list_shows_causes_one_pass_only(target: RunningRegistry):
    """Some registries know the schema of a version that was deleted permanently; a pass each second would keep them busy."""
    model = RegistryModel()
    register(model, "a", '"int"')

    def respond(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        return (200, {"schema": '"long"'}) if path == "/schemas/ids/2" else model.respond(method, path, body)

    source = RunningRegistry(respond)

    async def found() -> list[bool]:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            results = []
            for _ in range(3):
                await sync.plan()
                results.append(await sync.has_new_schema())
            model.highest["."] = 2
            register(model, "b", '"float"')
            return [*results, await sync.has_new_schema()]

    assert asyncio.run(found()) == [True, False, False, True]
    source.close()


def test_registries_are_compared_outside_of_the_event_loop(
    source: RunningRegistry, target: RunningRegistry, monkeypatch: pytest.MonkeyPatch
):
    """Tens of thousands of versions take seconds, in which heartbeats and probes need the loop."""
    threads: list[threading.Thread] = []

    def plan(*facts: Any) -> SchemaPlan:
        threads.append(threading.current_thread())
        return plan_schemas(*facts)

    monkeypatch.setattr(schema_sync, "plan_schemas", plan)

    synchronize(settings_of(source.url, target.url))

    assert threads
    assert threading.main_thread() not in threads


def test_later_passes_read_the_settings_of_some_subjects_only(
    source: RunningRegistry, target: RunningRegistry
):
    for number in range(100):
        register(source.model, f"s{number}", f'"{number}"')

    async def passes() -> list[int]:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            counts = []
            for _ in range(3):
                source.requests.clear()
                await sync.plan()
                counts.append(sum("/mode/" in request for request in source.requests))
            return counts

    first, *later = asyncio.run(passes())
    assert first == 100
    assert all(0 < count < 50 for count in later)


def test_a_registry_that_changes_ids_is_no_longer_written(source: RunningRegistry):
    register(source.model, "a", '"int"')
    register(source.model, "b", '"long"')
    registered = []

    def respond(method: str, path: str, _: dict[str, Any] | None) -> tuple[int, Any]:
        if method == "POST":
            registered.append(path)
            return 200, {"id": 77}
        return (200, []) if path.startswith("/schemas") else (200, {"mode": "IMPORT"})

    target = RunningRegistry(respond)

    async def attempts() -> None:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            for _ in range(2):
                with pytest.raises(IdsNotKeptError, match="does not support mode IMPORT"):
                    await sync.apply(await sync.plan())

    asyncio.run(attempts())
    target.close()
    assert registered == ["/subjects/a/versions"]


def test_a_schema_that_the_target_refuses_does_not_delay_other_schemas(source: RunningRegistry):
    """Registries differ in their checks of schemas. Schemas that refer to the refused one are not sent."""
    register(source.model, "a", '"int"')
    register(source.model, "bad", '"invalid"')
    register(source.model, "c", '"string"', references=[{"name": "B", "subject": "bad", "version": 1}])
    register(source.model, "d", '"long"')
    source.model.respond("PUT", "/config/d", {"compatibility": "FULL"})
    model = RegistryModel()

    def respond(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        if method == "POST" and "/bad/" in path:
            return 422, {"error_code": 42201, "message": "Invalid schema"}
        return model.respond(method, path, body)

    target = RunningRegistry(respond)

    async def attempts() -> None:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            for _ in range(2):
                with pytest.raises(RegistryRefusedError, match=r"/subjects/bad/versions.*1 more") as raised:
                    await sync.apply(await sync.plan())
                assert "Invalid schema" in str(raised.value)
            assert (await sync.plan()).missing == 2

    asyncio.run(attempts())
    target.close()
    assert sorted(subject for _, subject, _ in model.versions) == ["a", "d"]
    assert model.configs == source.model.configs


def test_the_id_of_a_refused_schema_is_reserved_until_it_is_accepted(source: RunningRegistry):
    """Otherwise the target would assign the highest id again after a switchover, to a different schema."""
    register(source.model, "a", '"int"')
    register(source.model, "bad", '"invalid"')
    model, refused = RegistryModel(), ["/bad/"]

    def respond(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        if method == "POST" and any(part in path for part in refused):
            return 422, {"message": "Invalid schema"}
        return model.respond(method, path, body)

    target = RunningRegistry(respond)

    async def attempts() -> None:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            for _ in range(3):
                with pytest.raises(RegistryRefusedError):
                    await sync.apply(await sync.plan())
            assert (".", RESERVED_SUBJECT, 2) in model.versions
            refused.clear()
            for _ in range(2):
                await sync.apply(await sync.plan())
            assert not (await sync.plan()).steps

    asyncio.run(attempts())
    target.close()
    assert model.versions == source.model.versions


def test_the_id_of_a_refused_schema_is_reserved_even_if_each_pass_ends_early(source: RunningRegistry):
    """The target responds to the next schema with 503.

    The second connector does not know which schema was refused to the first.
    """
    register(source.model, "late", '"long"')
    register(source.model, "bad", '"invalid"')
    model = RegistryModel()
    statuses = {"/bad/": 422, "/late/": 503}

    def respond(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        for part, status in statuses.items():
            if method == "POST" and part in path:
                return status, {"message": "refused"}
        return model.respond(method, path, body)

    target = RunningRegistry(respond)

    async def passes() -> None:
        for _ in range(2):
            with SchemaSync(settings_of(source.url, target.url)) as sync:
                for _ in range(2):
                    await refused_pass(sync)
                    assert list(model.versions) == [(".", RESERVED_SUBJECT, 2)]
        statuses.clear()
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            await sync.apply(await sync.plan())

    asyncio.run(passes())
    target.close()
    assert model.versions == source.model.versions


def test_an_id_is_reserved_only_if_all_schemas_with_this_id_are_refused(source: RunningRegistry):
    """A schema has the same id in two subjects, and only one of the subjects is refused."""
    register(source.model, "bad", '"int"')
    register(source.model, "good", '"int"')
    model = RegistryModel()
    target = refusing(model, "bad")

    async def passes() -> None:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            for _ in range(3):
                assert "more" not in await refused_pass(sync)

    asyncio.run(passes())
    target.close()
    assert list(model.versions) == [(".", "good", 1)]


def refusing(model: RegistryModel, part: str) -> RunningRegistry:
    """Returns a registry that refuses each schema whose subject begins with *part*."""

    def respond(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        registry.requests.append(f"{method} {path}")
        if method == "POST" and path.startswith(f"/subjects/{part}"):
            return 422, {"message": "Invalid schema"}
        return model.respond(method, path, body)

    registry = RunningRegistry(respond)
    return registry


async def refused_pass(sync: SchemaSync) -> str:
    """Runs a pass in which the target refuses a schema, and returns the error."""
    plan = await sync.plan()
    with pytest.raises(RegistryRefusedError) as raised:
        await sync.apply(plan)
    return str(raised.value)


def test_schemas_that_refer_to_a_refused_one_are_not_sent_and_delay_no_others(
    source: RunningRegistry,
):
    register(source.model, "bad", '"invalid"')
    references = [{"name": "B", "subject": "bad", "version": 1}]
    for number in range(REFUSED_STEPS_MAX + 1):
        register(source.model, f"c{number}", f'"{number}"', references=references)
    register(source.model, "good", '"long"')
    register(source.model, "zz", '"x"', references=[{"name": "G", "subject": "good", "version": 1}])
    model = RegistryModel()
    target = refusing(model, "bad/")

    async def one_pass() -> str:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            return await refused_pass(sync)

    assert f"{REFUSED_STEPS_MAX + 1} more" in asyncio.run(one_pass())
    target.close()
    assert sorted(subject for _, subject, _ in model.versions) == ["good", "zz"]
    assert sum(request.startswith("POST /subjects/") for request in target.requests) == 3


def test_many_refused_schemas_delay_a_later_schema_by_one_pass_only(source: RunningRegistry):
    for number in range(REFUSED_STEPS_MAX + 1):
        register(source.model, f"bad{number}", f'"{number}"')
    register(source.model, "good", '"long"')
    model = RegistryModel()
    target = refusing(model, "bad")

    async def passes() -> None:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            await refused_pass(sync)
            assert not model.versions
            await refused_pass(sync)
            assert [subject for _, subject, _ in model.versions] == ["good"]
            source.model.respond("DELETE", "/subjects/good/versions/1")
            await refused_pass(sync)

    asyncio.run(passes())
    target.close()
    key = (".", "good", 1)
    assert model.versions == {key: source.model.versions[key]}


@pytest.mark.parametrize("status", [429, 503])
def test_a_registry_that_is_unavailable_receives_no_further_requests(source: RunningRegistry, status: int):
    register(source.model, "a", '"int"')
    register(source.model, "b", '"long"')
    model, writes = RegistryModel(), []

    def respond(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        if method != "POST":
            return model.respond(method, path, body)
        writes.append(path)
        return status, {"message": "later"}

    target = RunningRegistry(respond)

    async def attempt() -> None:
        with SchemaSync(settings_of(source.url, target.url)) as sync:
            await sync.apply(await sync.plan())

    with pytest.raises(RegistryRefusedError, match="later"):
        asyncio.run(attempt())
    target.close()
    assert writes == ["/subjects/a/versions"]


@pytest.mark.parametrize(
    ("status", "error"), [(401, RegistryDeniedError), (403, RegistryDeniedError), (500, RegistryRefusedError)]
)
def test_the_error_of_a_refused_request_names_the_registry_and_the_reason(
    status: int, error: type[RegistryError]
):
    registry = RunningRegistry(lambda *_: (status, {"message": "store is not ready"}))

    with pytest.raises(error, match="registry of west") as raised:
        asyncio.run(read(registry.url))
    registry.close()

    assert ("store is not ready" in str(raised.value)) == (status == 500)


def test_the_error_for_an_unreachable_registry_hides_the_password():
    with pytest.raises(RegistryUnreachableError, match=r"cannot be reached at http://127\.0\.0\.1:1:"):
        asyncio.run(read("http://127.0.0.1:1"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "registry..svc"])
def test_the_next_url_is_used_if_one_cannot_be_reached(source: RunningRegistry, address: str):
    register(source.model, "a", '"int"')

    assert len(asyncio.run(read(f"http://{address},{source.url}"))) == 1


def test_a_server_that_is_not_a_schema_registry_is_refused():
    registry = RunningRegistry(lambda *_: (200, [{"schema": '"int"'}]))

    with pytest.raises(RegistryRefusedError, match="not Confluent's"):
        asyncio.run(read(registry.url))
    registry.close()


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[" * 100_000 + b"]" * 100_000], ids=["empty", "page", "nested"]
)
def test_a_response_that_cannot_be_parsed_has_no_value(body: bytes):
    assert _parsed(body) is None


@pytest.mark.parametrize(
    ("properties", "header"),
    [
        ({"schema.registry.basic.auth.user.info": "u:p"}, f"Basic {base64.b64encode(b'u:p').decode()}"),
        ({"schema.registry.bearer.auth.token": "t.o.k"}, "Bearer t.o.k"),
    ],
)
def test_credentials_are_sent(properties: dict[str, str], header: str):
    registry = RunningRegistry(authorization=header)

    assert asyncio.run(read(registry.url, properties)) == {}
    registry.close()


def test_only_a_registry_with_a_trusted_certificate_is_used(tmp_path: Path):
    (tmp_path / "tls.crt").write_text(signed().pem)
    (tmp_path / "tls.key").write_text(signed().key_pem())
    registry = RunningRegistry(certificate=str(tmp_path / "tls.crt"), key=str(tmp_path / "tls.key"))
    trust = {
        "schema.registry.ssl.truststore.type": "PEM",
        "schema.registry.ssl.truststore.certificates": authority().pem,
    }

    assert asyncio.run(read(registry.url, trust)) == {}
    with pytest.raises(RegistryUnreachableError, match=r"unknown CA|self-signed"):
        asyncio.run(read(registry.url))
    registry.close()


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {URL: "localhost:8081"},
        {URL: "http://user:secret@host"},
        {URL: "http://host", "schema.registry.basic.auth.user.info": "secret"},
        {URL: "http://host", "schema.registry.bearer.auth.token": "secret\n"},
        {
            URL: "http://host",
            "schema.registry.basic.auth.user.info": "u:secret",
            "schema.registry.bearer.auth.token": "secret",
        },
    ],
)
def test_invalid_settings_are_refused_without_their_values(properties: dict[str, str]):
    with pytest.raises(InvalidSettingError) as raised:
        endpoints(properties, "source")

    assert "secret" not in str(raised.value)


async def read(url: str, properties: Mapping[str, str] | None = None) -> Mapping[Any, Any]:
    settings = settings_of(url, url, **(properties or {})).target
    client = RegistryClient(replace(settings), lambda _, value: value)
    try:
        return (await RegistryReader(client, ["."]).read()).versions
    finally:
        client.close()
