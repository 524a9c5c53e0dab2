"""Reading a registry that changes, or has no time, while it is read; a test registry in this process responds."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mirrorflow_core.errors import RegistryRefusedError
from mirrorflow_core.schemas.registry_contents import RegistryContents
from mirrorflow_core.settings import RegistrySettings
from mirrorflow_kafka.registry import registry_reader
from mirrorflow_kafka.registry.registry_client import RegistryClient
from mirrorflow_kafka.registry.registry_reader import RegistryReader
from tests.harness.schema_registry.registry_in_process import RunningRegistry
from tests.harness.schema_registry.registry_model import RegistryModel

SUBJECTS = 100  # more than a pass reads again of what it knows


class BusyRegistry(RunningRegistry):
    """A registry with SUBJECTS subjects. *refuses* returns the status with which it refuses a path, or 0."""

    def __init__(self) -> None:
        super().__init__(self._respond_or_refuse)
        self.gets: Counter[str] = Counter()  # by what was read, and only if it was
        self.refuses: Callable[[str], int] = lambda _: 0
        self.model = RegistryModel(page=30)
        for number in range(SUBJECTS):
            self.model.respond("POST", f"/subjects/s{number:03}/versions", {"schema": f'"{number}"'})

    def _respond_or_refuse(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        status = self.refuses(path)
        if status:
            return status, {"message": "too many requests"}
        self.gets[path] += 1
        return self.model.respond(method, path, body)


@pytest.fixture
def registry() -> Iterator[BusyRegistry]:
    registry = BusyRegistry()
    yield registry
    registry.close()


async def passes(registry: BusyRegistry, count: int) -> list[RegistryContents | RegistryRefusedError]:
    """Returns what each of *count* passes has read, or its error."""
    properties = {"schema.registry.url": registry.url}
    settings = RegistrySettings(alias="east", side="source", properties=properties)
    client = RegistryClient(settings, lambda _, value: value)
    reader = RegistryReader(client, ["."])
    results: list[RegistryContents | RegistryRefusedError] = []
    try:
        for _ in range(count):
            try:
                results.append(await reader.read())
            except RegistryRefusedError as error:
                results.append(error)
    finally:
        client.close()
    return results


def test_a_deletion_between_two_pages_does_not_make_other_versions_deleted(registry: BusyRegistry):
    """It moves each later version one place towards the beginning, so one is on neither of the two pages."""

    def delete_after_first_page(path: str) -> int:
        if "deleted=false" in path and "offset=30" in path:
            registry.model.respond("DELETE", "/subjects/s000/versions/1")
        return 0

    registry.refuses = delete_after_first_page

    (contents,) = asyncio.run(passes(registry, 1))

    assert isinstance(contents, RegistryContents)
    deleted = [subject.name for (subject, _), version in contents.versions.items() if version.is_deleted]
    assert set(deleted) <= {"s000"}


def test_a_registry_with_a_limit_of_requests_is_read_whole(
    registry: BusyRegistry, monkeypatch: pytest.MonkeyPatch
):
    """Managed registries respond with 429 to more than some requests a second, and a pass over many subjects has thousands."""
    monkeypatch.setattr(registry_reader, "BUSY_PAUSE_MIN_S", 0.0)
    monkeypatch.setattr(registry_reader, "BUSY_PAUSE_MAX_S", 0.0)
    requests = Counter[str]()

    def refuse_each_second(path: str) -> int:
        requests[path] += 1
        return 429 if requests[path] % 2 else 0

    registry.refuses = refuse_each_second

    (contents,) = asyncio.run(passes(registry, 1))

    assert isinstance(contents, RegistryContents)
    assert len(contents.versions) == SUBJECTS
    assert len(contents.settings_read) == SUBJECTS + 1


def test_a_pass_that_fails_keeps_the_settings_that_it_has_read(registry: BusyRegistry):
    """Otherwise each pass over many subjects would read all of them again, and fail at the same request."""
    refused_once = iter([503])
    registry.refuses = lambda path: next(refused_once, 0) if path == f"/config/s{SUBJECTS - 1:03}" else 0

    failed, read = asyncio.run(passes(registry, 2))

    assert isinstance(failed, RegistryRefusedError)
    assert isinstance(read, RegistryContents)
    repeated = [path for path, count in registry.gets.items() if path.startswith("/config/s") and count > 1]
    assert len(repeated) <= SUBJECTS // 2
