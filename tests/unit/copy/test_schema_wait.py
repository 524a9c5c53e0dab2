"""Records wait for the schemas that they name.

The tests show which records wait, for how long, and what the partition does meanwhile. The registries run in this
process.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest

from mirrorflow_core.copying.effects import Effects
from mirrorflow_core.schemas import schema_wait_rules
from mirrorflow_core.schemas.subject_mapping import RESERVED_SUBJECT
from mirrorflow_core.settings import RegistrySettings, SchemaSettings, SchemaWaitSettings
from mirrorflow_core.wire.fetch import FetchFrom, PartitionFetchResponse
from mirrorflow_core.wire.records import Record, encode
from mirrorflow_kafka.registry.registry_client import RegistryClient
from mirrorflow_replicator.copy.partition_dispatch import PartitionDispatch
from mirrorflow_replicator.copy.schema_wait import PROBE_INTERVAL_S, SCHEMA_MISSING, SchemaWait
from mirrorflow_replicator.copy.task_parts import KnownSchemas
from tests.harness.schema_registry.registry_in_process import RunningRegistry
from tests.harness.schema_registry.registry_model import RegistryModel

TOPIC = "orders"
SOON_S = 20.0
LONG_S = 3600.0
SHORT_S = 0.01


@pytest.fixture
def source() -> Iterator[RunningRegistry]:
    registry = RunningRegistry()
    yield registry
    registry.close()


@pytest.fixture
def target() -> Iterator[RunningRegistry]:
    registry = RunningRegistry()
    registry.model.respond("PUT", "/mode", {"mode": "IMPORT"})
    yield registry
    registry.close()


def settings_of(
    source: RunningRegistry, target: RunningRegistry, *, longest_s: float = LONG_S, **schemas: Any
) -> SchemaWaitSettings:
    registries = {
        side: RegistrySettings(alias=alias, side=side, properties={"schema.registry.url": registry.url})
        for side, alias, registry in (("source", "east", source), ("target", "west", target))
    }
    return SchemaWaitSettings(
        topics=("orders.*",),
        longest_s=longest_s,
        schemas=replace(
            SchemaSettings(
                name="MirrorSourceConnector",
                flow="east->west",
                source_alias="east",
                target_alias="west",
                source=registries["source"],
                target=registries["target"],
                subjects=(".*",),
                contexts={".": "."},
            ),
            **schemas,
        ),
    )


def named(*ids: int) -> memoryview:
    """Returns records that name schemas."""
    return memoryview(encode([Record(0, 1, None, b"\0" + number.to_bytes(4)) for number in ids], codec=0))


def register(model: RegistryModel, subject: str, schema: str, **more: Any) -> int:
    status, response = model.respond("POST", f"/subjects/{subject}/versions", {"schema": schema, **more})
    assert status == 200, response
    return int(response["id"])


class RunningWait:
    """A running wait that queries the registries, and the partitions that it has let continue."""

    def __init__(self, settings: SchemaWaitSettings, known: KnownSchemas | None = None) -> None:
        self.errors: Counter[str] = Counter()
        self.passed_s = 0.0  # in addition to the time that passes
        self.wait = SchemaWait(
            settings, known or KnownSchemas(), self.errors, monotonic=lambda: time.monotonic() + self.passed_s
        )
        self.resumed = self.noted = 0
        self._job: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._job = asyncio.create_task(self.wait.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._job is not None
        self._job.cancel()
        await asyncio.gather(self._job, return_exceptions=True)

    def hold(self, *ids: int, topic: str = TOPIC) -> bool:
        return self.wait.hold(topic, named(*ids), self._resume, self._note_wait)

    def _resume(self) -> None:
        self.resumed += 1

    def _note_wait(self) -> None:
        self.noted += 1

    async def until(self, condition: Callable[[], object]) -> None:
        assert self._job is not None
        async with asyncio.timeout(SOON_S):
            while not condition():
                assert not self._job.done()
                await asyncio.sleep(0.01)


def test_records_wait_until_the_target_has_their_schema(source: RunningRegistry, target: RunningRegistry):
    schema_id = register(source.model, "orders-value", '"int"')

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(schema_id)
            await running.until(lambda: len(target.requests) > 2)
            assert not running.resumed

            register(target.model, "orders-value", '"int"', id=schema_id, version=1)
            await running.until(lambda: running.resumed)

            asked = len(target.requests)
            assert not running.hold(schema_id)
            assert (len(target.requests), running.errors) == (asked, Counter())

    asyncio.run(run())


def test_an_id_is_requested_once_for_all_partitions(source: RunningRegistry, target: RunningRegistry):
    schema_id = register(source.model, "orders-value", '"int"')
    register(target.model, "orders-value", '"int"', id=schema_id, version=1)

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert [running.hold(schema_id) for _ in range(50)] == [True] * 50
            await running.until(lambda: running.resumed == 50)

    asyncio.run(run())
    assert len(target.requests) == 1


def test_other_topics_and_records_without_schemas_do_not_wait(
    source: RunningRegistry, target: RunningRegistry
):
    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert not running.hold(1, topic="payments")
            assert not running.wait.hold(TOPIC, memoryview(b""), lambda: None, lambda: None)

    asyncio.run(run())
    assert source.requests == target.requests == []


def test_an_id_unknown_to_both_registries_delays_records_only_briefly(
    source: RunningRegistry, target: RunningRegistry
):
    """Data without a schema may begin with a zero byte, too. The id is requested twice: one registry instance may lag."""

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(77)
            await running.until(lambda: running.resumed)
            assert not running.hold(77)
            assert running.errors == Counter()

    asyncio.run(run())
    assert len(target.requests) == 2


def test_records_of_subjects_that_are_not_copied_do_not_wait(
    source: RunningRegistry, target: RunningRegistry
):
    schema_id = register(source.model, "private-value", '"int"')

    async def run() -> None:
        async with RunningWait(settings_of(source, target, subjects=("orders-value",))) as running:
            assert running.hold(schema_id)
            await running.until(lambda: running.resumed)

    asyncio.run(run())


def test_a_schema_is_awaited_in_the_context_of_the_target(source: RunningRegistry, target: RunningRegistry):
    schema_id = register(source.model, "orders-value", '"int"')
    register(target.model, "orders-value", '"int"', id=schema_id, version=1)

    async def run() -> None:
        async with RunningWait(settings_of(source, target, contexts={".": ".east"})) as running:
            assert running.hold(schema_id)
            await running.until(lambda: len(target.requests) > 2)
            assert not running.resumed
            register(target.model, ":.east:orders-value", '"int"', id=schema_id, version=1)
            await running.until(lambda: running.resumed)

    asyncio.run(run())


def test_records_are_copied_without_their_schema_after_the_limit(
    source: RunningRegistry, target: RunningRegistry, caplog: pytest.LogCaptureFixture
):
    schema_id = register(source.model, "orders-value", '"int"')

    async def run() -> None:
        async with RunningWait(settings_of(source, target, longest_s=SHORT_S)) as running:
            assert running.hold(schema_id)
            await running.until(lambda: running.resumed)
            assert running.errors == {SCHEMA_MISSING: 1}
            assert not running.hold(schema_id)

    asyncio.run(run())
    assert f"before it is known that the registry of west has the schemas of ids {schema_id}" in caplog.text


def test_an_unavailable_registry_delays_records_once_until_it_responds(
    source: RunningRegistry, target: RunningRegistry, monkeypatch: pytest.MonkeyPatch
):
    schema_id = register(source.model, "orders-value", '"int"')
    is_up = False
    respond = target.model.respond

    def respond_or_fail(method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        return respond(method, path, body) if is_up else (503, {"message": "down"})

    monkeypatch.setattr(target.model, "respond", respond_or_fail)
    # Each request waits for its response, also on a busy machine.
    monkeypatch.setattr(schema_wait_rules, "ASK_TIMEOUT_MIN_S", SOON_S)

    async def run() -> None:
        nonlocal is_up
        async with RunningWait(settings_of(source, target, longest_s=SHORT_S)) as running:
            assert running.hold(schema_id)
            await running.until(lambda: running.resumed)
            assert not running.hold(schema_id)
            assert "down" in str(running.wait.warnings)

            running.passed_s += PROBE_INTERVAL_S
            is_up = True
            register(target.model, "orders-value", '"int"', id=schema_id, version=1)
            assert running.hold(schema_id)
            await running.until(lambda: running.resumed == 2 and running.wait.warnings == ())

    asyncio.run(run())


def test_a_placeholder_does_not_count_as_the_schema(source: RunningRegistry, target: RunningRegistry):
    schema_id = register(source.model, "orders-value", '"int"')
    register(target.model, RESERVED_SUBJECT, '"null"', id=schema_id, version=schema_id)

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(schema_id)
            await running.until(lambda: len(target.requests) > 2)
            assert not running.resumed

    asyncio.run(run())


def test_a_refused_id_delays_only_its_own_records(
    source: RunningRegistry, target: RunningRegistry, monkeypatch: pytest.MonkeyPatch
):
    schema_id = register(source.model, "orders-value", '"int"')
    register(target.model, "orders-value", '"int"', id=schema_id, version=1)
    respond = target.model.respond

    def respond_or_refuse(method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        return (403, {"message": "no"}) if "/ids/666" in path else respond(method, path, body)

    monkeypatch.setattr(target.model, "respond", respond_or_refuse)

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(666)
            assert running.hold(schema_id)
            await running.until(lambda: running.resumed)
            assert (running.resumed, running.errors) == (1, Counter())

    asyncio.run(run())


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


def test_a_slow_registry_is_next_queried_for_the_ids_without_a_response(
    source: RunningRegistry, target: RunningRegistry, monkeypatch: pytest.MonkeyPatch
):
    answered: list[int] = []
    left = 0

    def refresh(_: RegistryClient) -> None:
        nonlocal left
        left = 2  # responses to this round of requests

    async def get(client: RegistryClient, request: Any) -> Any:
        nonlocal left
        if client.alias == "east":
            return [{"subject": "orders-value", "version": 1}]
        if not left:
            await _never()
        left -= 1
        answered.append(int(request.path.split("/")[3]))
        return None

    monkeypatch.setattr(RegistryClient, "refresh", refresh)
    monkeypatch.setattr(RegistryClient, "get", get)
    monkeypatch.setattr(schema_wait_rules, "ASK_TIMEOUT_S", schema_wait_rules.ASK_TIMEOUT_MIN_S)

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(1, 2, 3, 4, 5, 6)
            await running.until(lambda: len(answered) >= 6)
            await running.until(lambda: running.noted)

    asyncio.run(run())
    assert answered[:6] == [1, 2, 3, 4, 5, 6]


def test_ids_with_a_response_let_records_continue_while_other_ids_wait(
    source: RunningRegistry, target: RunningRegistry, monkeypatch: pytest.MonkeyPatch
):
    async def get(_: RegistryClient, request: Any) -> Any:
        if "/ids/2/" in request.path:
            await _never()
        return [{"subject": "orders-value", "version": 1}]

    monkeypatch.setattr(RegistryClient, "get", get)
    monkeypatch.setattr(schema_wait_rules, "ASK_TIMEOUT_S", LONG_S)

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(2)
            assert running.hold(1)
            await running.until(lambda: running.resumed == 1)
            assert not running.hold(1)

    asyncio.run(run())


def test_a_cancelled_wait_leaves_no_request(
    source: RunningRegistry, target: RunningRegistry, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(RegistryClient, "get", _never)

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(1, 2)
            await running.until(lambda: len(asyncio.all_tasks()) == 4)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_registry_that_never_responds_delays_records_for_the_limit(
    source: RunningRegistry, target: RunningRegistry, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(RegistryClient, "get", _never)
    monkeypatch.setattr(schema_wait_rules, "ASK_TIMEOUT_S", LONG_S)

    async def run() -> None:
        async with RunningWait(settings_of(source, target, longest_s=SHORT_S)) as running:
            assert running.hold(1)
            await running.until(lambda: running.resumed)
            assert not running.hold(2)

    asyncio.run(run())


def test_the_limit_includes_the_waits_for_newer_ids_of_a_later_fetch(
    source: RunningRegistry, target: RunningRegistry
):
    first, second = (register(source.model, "orders-value", schema) for schema in ('"int"', '"long"'))

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(first)
            running.passed_s += LONG_S / 2
            register(target.model, "orders-value", '"int"', id=first, version=1)
            await running.until(lambda: running.resumed == 1)
            assert running.hold(first, second)
            running.passed_s += LONG_S / 2
            await running.until(lambda: running.resumed == 2)
            assert running.errors == {SCHEMA_MISSING: 1}

            assert not running.hold(first, second, 77)
            assert running.errors == {SCHEMA_MISSING: 2}
            assert running.hold(77)

    asyncio.run(run())


def test_a_later_session_knows_which_ids_an_earlier_session_has_waited_for(
    source: RunningRegistry, target: RunningRegistry
):
    schema_id = register(source.model, "orders-value", '"int"')
    known = KnownSchemas()

    async def run() -> None:
        async with RunningWait(settings_of(source, target, longest_s=SHORT_S), known) as running:
            assert running.hold(schema_id)
            await running.until(lambda: running.resumed)
        async with RunningWait(settings_of(source, target, longest_s=SHORT_S), known) as running:
            assert not running.hold(schema_id)

    asyncio.run(run())


def test_the_reason_for_the_wait_is_reported_again_while_records_wait(
    source: RunningRegistry, target: RunningRegistry
):
    schema_id = register(source.model, "orders-value", '"int"')

    async def run() -> None:
        async with RunningWait(settings_of(source, target)) as running:
            assert running.hold(schema_id)
            await running.until(lambda: running.noted > 2)

    asyncio.run(run())


class Reader:
    """A reader that counts how often a partition may have become fetchable."""

    partition_bytes = 1

    def __init__(self) -> None:
        self.changes = 0

    def changed(self, topic: str, partition: int) -> None:
        self.changes += 1


def test_a_partition_is_not_fetched_while_its_records_wait():
    """The fetched records are dropped and fetched again later."""
    taken: list[PartitionFetchResponse] = []
    resumes: list[Callable[[], None]] = []
    notes: list[Callable[[], None]] = []
    obstacles: list[object] = []

    def hold(_: str, __: memoryview, resume: Callable[[], None], note_wait: Callable[[], None]) -> bool:
        resumes.append(resume)
        notes.append(note_wait)
        return len(resumes) == 1

    def fetched(response: PartitionFetchResponse, _: int) -> Effects:
        taken.append(response)
        return ()

    wanted = FetchFrom(0, -1, -1, 1)
    copier: Any = SimpleNamespace(
        topic=TOPIC, partition=0, target=("east.orders", 0), packer=SimpleNamespace(queued_bytes=0),
        next_fetch=lambda _: wanted, may_fetch_soon=lambda: True, health=SimpleNamespace(note_obstacle=obstacles.append),
        fetched=fetched,
    )  # fmt: skip
    wait: Any = SimpleNamespace(hold=hold, obstacle=SchemaWait.obstacle)
    services: Any = SimpleNamespace(count_buffered=lambda _: None)
    reader: Any = Reader()
    dispatch = PartitionDispatch(copier, services, wait)
    dispatch.reader = reader
    response: Any = SimpleNamespace(records=named(1))

    dispatch.fetched(response, 0)
    assert (dispatch.next_fetch(), dispatch.may_fetch_soon(), taken) == (None, False, [])
    notes[0]()
    assert obstacles == [SchemaWait.obstacle] * 2

    resumes[0]()
    assert (dispatch.next_fetch(), dispatch.may_fetch_soon(), reader.changes) == (wanted, True, 1)
    dispatch.fetched(response, 0)
    assert taken == [response]
