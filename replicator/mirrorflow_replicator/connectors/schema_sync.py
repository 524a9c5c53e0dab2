"""Plans and writes the schemas of one flow; `mirrorflow plan` and `check` use the plan alone."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Self, TypeGuard

from mirrorflow_core.errors import IdsNotKeptError, RegistryRefusedError
from mirrorflow_core.schemas.registry_contents import RegistryContents, SchemaVersion, SubjectName
from mirrorflow_core.schemas.registry_requests import requests_of
from mirrorflow_core.schemas.schema_plan import (
    DeleteVersion,
    RegisterVersion,
    SchemaPlan,
    SchemaStep,
    SetCompatibility,
    SetContextMode,
    SetSubjectMode,
    VersionKey,
    placeholder_of,
    plan_schemas,
)
from mirrorflow_core.schemas.subject_mapping import RESERVED_SUBJECT, SubjectMapping
from mirrorflow_core.settings import SchemaSettings
from mirrorflow_kafka.registry.registry_client import RegistryClient
from mirrorflow_kafka.registry.registry_reader import RegistryReader
from mirrorflow_replicator.config.providers import Resolver

# A registry that refuses everything gets so many requests in a pass.
REFUSED_STEPS_MAX: Final = 100
# Of 4xx: the registry has no time, and may take the same request later.
_LATER: Final = frozenset({408, 429})
_Id = tuple[str, int]  # with its context on the target


class SchemaSync:
    """Both registries of one flow. Its methods raise RegistryError and SettingError; used as a context, it closes its connections."""

    def __init__(self, settings: SchemaSettings) -> None:
        resolve = Resolver(settings.providers).resolve_required
        self._mapping = SubjectMapping(
            subjects=settings.subjects, contexts=settings.contexts, prefix=settings.subject_prefix
        )
        self._clients = [RegistryClient(registry, resolve) for registry in (settings.source, settings.target)]
        self._source = RegistryReader(self._clients[0], settings.contexts)
        self._target = RegistryReader(self._clients[1], settings.contexts.values())
        self._highest: Mapping[str, int] = {}
        self._found: dict[str, int] = {}  # by context: the last id that `has_new_schema` has found
        self._ids_not_kept: IdsNotKeptError | None = None
        self._refused: frozenset[VersionKey] = frozenset()  # when they were last sent
        self._to_reserve: frozenset[_Id] = frozenset()
        self.registered = 0  # versions since the start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()

    async def plan(self) -> SchemaPlan:
        """Reads both registries, and returns what is to be written."""
        for client in self._clients:
            client.refresh()
        # The target first: what the source gets meanwhile is missing on the target then, never the other way round.
        target = await self._target.read()
        source = await self._source.read()
        self._highest = source.highest_ids()
        self._to_reserve = _to_reserve(self._highest, target, self._mapping)
        # In a thread: 50,000 versions take some 6 s.
        return await asyncio.to_thread(plan_schemas, source, target, self._mapping, self._refused)

    async def apply(self, plan: SchemaPlan) -> None:
        """Carries out the steps of *plan*, one after the other, up to the first that fails.

        A step that the registry refuses for what it contains does not keep the others from it; its error is raised at the end. What
        refers to it is not sent. What the registry has refused in an earlier pass comes last, so that it keeps nothing new from it.
        """
        if self._ids_not_kept is not None:
            raise self._ids_not_kept
        self._refused &= {step.version.key for step in plan.steps if isinstance(step, RegisterVersion)}
        steps, placeholders = _in_order(plan.steps, self._refused)
        to_come = Counter(_id_of(step.version) for step in steps if _copies(step))
        to_reserve = set(self._to_reserve)
        refused: list[RegistryRefusedError] = []
        skipped = 0

        async def is_accepted(step: SchemaStep) -> bool | None:
            """Returns whether the registry accepts *step*; None: and takes no further ones in this pass."""
            try:
                await self._carry_out(step)
            except RegistryRefusedError as error:
                refused.append(error)
                may_go_on = _concerns_step_only(step, error) and len(refused) < REFUSED_STEPS_MAX
                return False if may_go_on else None
            return True

        for step in steps:
            if not _copies(step):
                if await is_accepted(step) is None:
                    break
                continue
            key, schema_id = step.version.key, _id_of(step.version)
            accepted: bool | None = False
            if _refers_to(step, self._refused - {key}):
                skipped += 1
            else:
                if schema_id in placeholders:
                    to_reserve.add(schema_id)
                    accepted = await is_accepted(placeholders[schema_id])
                    if accepted:
                        del placeholders[schema_id]
                if schema_id not in placeholders:
                    accepted = await is_accepted(step)
            to_come[schema_id] -= 1
            if accepted:
                self._refused -= {key}
                to_reserve.discard(schema_id)
                continue
            self._refused |= {key}
            is_last = accepted is None or not to_come[schema_id]
            if is_last and schema_id in to_reserve and schema_id not in placeholders:
                # At once: the pass may end at any later step, and with it the process.
                reserved = await is_accepted(RegisterVersion(placeholder_of(*schema_id)))
                accepted = None if reserved is None else accepted
            if accepted is None:
                break
        if refused:
            raise refused[0].with_others(len(refused) - 1 + skipped)

    async def _carry_out(self, step: SchemaStep) -> None:
        for request in requests_of(step):
            response = await self._clients[1].send(request)
            if isinstance(step, RegisterVersion):
                self._check_id(step, response)
        self._target.expire(_scopes_of(step))

    def _check_id(self, step: RegisterVersion, response: object) -> None:
        version = step.version
        schema_id = response.get("id") if isinstance(response, dict) else None
        if schema_id != version.schema_id:
            self._ids_not_kept = IdsNotKeptError(
                registry=self._clients[1].alias,
                subject=version.subject.qualified,
                wanted=version.schema_id,
                found=schema_id,
            )
            raise self._ids_not_kept
        self.registered += 1

    async def has_new_schema(self) -> bool:
        """Returns whether the source has issued an id since the last plan: ids of a context are consecutive.

        An id that the next plan does not have either, such as one of a version that was deleted permanently, is found once.
        """
        for context in self._mapping.contexts:
            schema_id = max(self._highest.get(context, 0), self._found.get(context, 0)) + 1
            if await self._source.has_schema(context, schema_id):
                self._found[context] = schema_id
                return True
        return False


def _to_reserve(
    highest: Mapping[str, int], target: RegistryContents, mapping: SubjectMapping
) -> frozenset[_Id]:
    """Returns the ids, each with its context on the target, that need a placeholder if all their versions are refused."""
    held: dict[str, int] = {}
    for version in target.versions.values():
        if version.subject.name != RESERVED_SUBJECT:
            context = version.subject.context
            held[context] = max(held.get(context, 0), version.schema_id)
    return frozenset(
        (copy, highest[context])
        for context, copy in mapping.contexts.items()
        if highest.get(context, 0) > held.get(copy, 0)
    )


def _in_order(
    steps: Sequence[SchemaStep], refused: Collection[VersionKey]
) -> tuple[list[SchemaStep], dict[_Id, DeleteVersion]]:
    """Returns *steps* with those for *refused* versions, and for what refers to them, at the end.

    Apart from them are the deletions of placeholders whose id a version is to get: they come directly before it.
    """
    late = set(refused)
    copied = {_id_of(step.version) for step in steps if _copies(step)}
    placeholders: dict[_Id, DeleteVersion] = {}
    first: list[SchemaStep] = []
    last: list[SchemaStep] = []
    old: list[SchemaStep] = []  # deletions of placeholders that others replace
    for step in steps:
        match step:
            case DeleteVersion(SubjectName(context, name), number) if name == RESERVED_SUBJECT:
                if (context, number) in copied:
                    placeholders[context, number] = step
                else:
                    old.append(step)
            case RegisterVersion(version) if _reserves(step):
                schema_id = _id_of(version)
                if schema_id not in placeholders:
                    first.append(step)
                    if schema_id in copied:
                        placeholders[schema_id] = DeleteVersion(*version.key, permanently=True)
            case RegisterVersion(version):
                if _refers_to(step, late):
                    late.add(version.key)
                (last if version.key in late else first).append(step)
            case DeleteVersion(subject, number) if (subject, number) in late:
                last.append(step)
            case _:
                first.append(step)
    return [*first, *last, *old], placeholders


def _id_of(version: SchemaVersion) -> _Id:
    return version.subject.context, version.schema_id


def _copies(step: SchemaStep) -> TypeGuard[RegisterVersion]:
    return isinstance(step, RegisterVersion) and not _reserves(step)


def _refers_to(step: RegisterVersion, keys: Collection[VersionKey]) -> bool:
    return any((reference.subject, reference.version) in keys for reference in step.version.references)


def _reserves(step: SchemaStep) -> bool:
    return isinstance(step, RegisterVersion) and step.version.subject.name == RESERVED_SUBJECT


def _concerns_step_only(step: SchemaStep, error: RegistryRefusedError) -> bool:
    # Without its mode a context takes no version.
    return not isinstance(step, SetContextMode) and error.status // 100 == 4 and error.status not in _LATER


def _scopes_of(step: SchemaStep) -> tuple[SubjectName, ...]:
    """Returns the scopes whose settings *step* changes."""
    match step:
        case SetContextMode(context):
            return (SubjectName(context, ""),)
        case SetSubjectMode(scope) | SetCompatibility(scope):
            return (scope,)
        case _:
            return ()
