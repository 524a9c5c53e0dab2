"""Reads the contents of one registry, for a plan.

Versions are listed whole, in pages, at each pass. Modes and compatibility have one request for each subject: the first pass
requests them all, later ones those of new subjects and of some others in turn, so that all are read again within minutes.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import RegistryRefusedError
from mirrorflow_core.schemas.registry_contents import (
    DEFAULT_CONTEXT,
    READ_WRITE,
    RegistryContents,
    RegistryResponseError,
    SchemaVersion,
    SubjectName,
    parse_compatibility,
    parse_subject,
    parse_version,
)
from mirrorflow_core.schemas.registry_requests import (
    PAGE_VERSIONS,
    RegistryRequest,
    schema_request,
    settings_request,
    subjects_request,
    versions_request,
)
from mirrorflow_kafka.registry.registry_client import RegistryClient

# Subjects whose settings one pass reads again: ten thousand take 250 passes of 5 s, and cost a registry 16 requests a second.
SETTINGS_PER_PASS: Final = 40
# Subjects whose settings are read at once, each by one request after the other: as many as the client has connections for.
SETTINGS_AT_ONCE: Final = 4
# Managed registries take some 25 requests a second. A reader that pauses for a second with all of its requests stays below that.
_BUSY: Final = 429
BUSY_PAUSE_MIN_S, BUSY_PAUSE_MAX_S = 0.5, 8.0
BUSY_ATTEMPTS_MAX: Final = (
    8  # half a minute; then the pass fails, and the next one continues with what it lacks
)
# Ten million versions; a registry that returns the same page without end has failed.
PAGES_MAX: Final = 10_000
VersionKey = tuple[SubjectName, int]


class RegistryReader:
    """Reads *contexts* of the registry of *client*. Its methods raise RegistryError."""

    def __init__(self, client: RegistryClient, contexts: Iterable[str]) -> None:
        self._client = client
        self._contexts = tuple(contexts)
        # By scope, in the order in which they were read: the mode and the compatibility settings; None: it has none of its own.
        self._settings: dict[SubjectName, tuple[str | None, str | None]] = {}
        self._deleted: dict[str, frozenset[VersionKey]] = {}  # by context, as of the last pass

    async def read(self) -> RegistryContents:
        """Returns the current contents."""
        try:
            versions: dict[VersionKey, SchemaVersion] = {}
            for context in self._contexts:
                versions |= await self._versions(context)
            await self._read_settings({subject for subject, _ in versions})
        except RegistryResponseError as error:
            raise RegistryRefusedError(
                registry=self._client.alias,
                request="GET /schemas",
                status=200,
                message=f"{error}; the registry's API is not Confluent's",
            ) from None
        settings = self._settings
        return RegistryContents(
            versions=versions,
            modes={
                context: settings[SubjectName(context, "")][0] or await self._default_mode()
                for context in self._contexts
            },
            subject_modes={
                scope: mode for scope, (mode, _) in settings.items() if scope.name and mode is not None
            },
            compatibility={scope: text for scope, (_, text) in settings.items() if text is not None},
            settings_read=frozenset(settings),
        )

    def expire(self, scopes: Collection[SubjectName]) -> None:
        """Lets the next pass read the settings of *scopes* again."""
        for scope in scopes:
            self._settings.pop(scope, None)

    async def has_schema(self, context: str, schema_id: int) -> bool:
        """Returns whether *context* has a schema with this id: the cheapest sign of a new schema."""
        return await self._client.get(schema_request(context, schema_id)) is not None

    async def subjects_of(self, context: str, schema_id: int) -> frozenset[SubjectName]:
        """Returns the subjects with a version of this id in *context*; empty if it has no such schema."""
        entries = await self._client.get(subjects_request(context, schema_id))
        named = (entry.get("subject") for entry in entries or () if isinstance(entry, dict))
        return frozenset(parse_subject(name, context) for name in named if isinstance(name, str))

    async def _versions(self, context: str) -> dict[VersionKey, SchemaVersion]:
        listed = await self._listed(context, with_deleted=True)
        # Not every registry marks the deleted ones.
        live = await self._listed(context, with_deleted=False)
        if listed.keys() - live.keys() - self._deleted.get(context, frozenset()):
            # A version that is deleted between two pages moves those after it to the page before, so one is in neither.
            live |= await self._listed(context, with_deleted=False)
        self._deleted[context] = frozenset(listed.keys() - live.keys())
        return {
            key: version if key in live else replace(version, is_deleted=True)
            for key, version in listed.items()
        }

    async def _listed(self, context: str, *, with_deleted: bool) -> dict[VersionKey, SchemaVersion]:
        listed: dict[VersionKey, SchemaVersion] = {}
        offset = 0
        for _ in range(PAGES_MAX):
            page = await self._get(versions_request(context, with_deleted=with_deleted, offset=offset))
            if not isinstance(page, list):
                raise RegistryResponseError("the list of versions is no JSON array")
            known = len(listed)
            for value in page:
                version = parse_version(value)
                if version.subject.context == context:
                    listed[version.key] = version
            offset += len(page)
            # A registry without pages returns the same again; a page may be shorter than requested.
            if len(listed) == known or len(page) > PAGE_VERSIONS:
                return listed
        raise RegistryResponseError(f"the list of versions has more than {PAGES_MAX} pages")

    async def _read_settings(self, subjects: Collection[SubjectName]) -> None:
        scopes = {*subjects, *(SubjectName(context, "") for context in self._contexts)}
        for gone in self._settings.keys() - scopes:
            del self._settings[gone]
        again = [*self._settings][:SETTINGS_PER_PASS]
        contexts = {scope for scope in scopes if not scope.name}
        due = sorted((scopes - self._settings.keys()) | contexts) + [
            scope for scope in again if scope not in contexts
        ]
        left = iter(due)

        async def read_left() -> None:
            for scope in left:
                settings = await self._settings_of(scope)
                self._settings.pop(scope, None)
                self._settings[scope] = settings

        try:
            async with asyncio.TaskGroup() as group:  # the first error ends all requests
                for _ in range(SETTINGS_AT_ONCE):
                    group.create_task(read_left())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _settings_of(self, scope: SubjectName) -> tuple[str | None, str | None]:
        mode = await self._get(settings_request("mode", scope))
        compatibility = await self._get(settings_request("config", scope))
        return _mode(mode), parse_compatibility(compatibility or {})

    async def _default_mode(self) -> str:
        """Returns the mode of contexts that have none of their own."""
        scope = SubjectName(DEFAULT_CONTEXT, "")
        return _mode(await self._get(settings_request("mode", scope))) or READ_WRITE

    async def _get(self, request: RegistryRequest) -> Any:
        """Returns the response to one of the many requests of a pass; waits while the registry takes no more of them."""
        async for attempt in Backoff(min_s=BUSY_PAUSE_MIN_S, max_s=BUSY_PAUSE_MAX_S):
            try:
                return await self._client.get(request)
            except RegistryRefusedError as error:
                if error.status != _BUSY or attempt == BUSY_ATTEMPTS_MAX:
                    raise
        raise AssertionError("the attempts have no end")


def _mode(response: Any) -> str | None:
    mode = response.get("mode") if isinstance(response, dict) else None
    return mode if isinstance(mode, str) and mode else None
