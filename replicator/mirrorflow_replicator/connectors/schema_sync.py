"""Plans and writes the schemas of one flow; `mirrorflow plan` and `check` use the plan alone."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Self

from mirrorflow_core.errors import IdsNotKeptError, RegistryRefusedError
from mirrorflow_core.schemas.registry_contents import SubjectName
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
        self._ids_not_kept: IdsNotKeptError | None = None
        self._refused: frozenset[VersionKey] = frozenset()  # in the last pass
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
        return plan_schemas(source, target, self._mapping, self._refused)

    async def apply(self, plan: SchemaPlan) -> None:
        """Carries out the steps of *plan*, one after the other, up to the first that fails.

        A step that the registry refuses for what it contains does not keep the others from it; its error is raised at the end. What
        refers to it is not sent. What the registry has refused in an earlier pass comes last, so that it keeps nothing new from it.
        """
        if self._ids_not_kept is not None:
            raise self._ids_not_kept
        planned = {step.version.key for step in plan.steps if isinstance(step, RegisterVersion)}
        refused: list[RegistryRefusedError] = []
        refused_before, self._refused = self._refused & planned, frozenset()
        skipped = 0
        for step in _in_order(plan.steps, refused_before):
            if _reserves(step) and refused_before and not self._refused:
                continue  # what it was planned for has been accepted; the next plan decides again
            if isinstance(step, RegisterVersion) and _refers_to(step, self._refused):
                self._refused |= {step.version.key}
                skipped += 1
                continue
            try:
                await self._carry_out(step)
            except RegistryRefusedError as error:
                refused.append(error)
                if isinstance(step, RegisterVersion):
                    self._refused |= {step.version.key}
                if not _concerns_step_only(step, error) or len(refused) == REFUSED_STEPS_MAX:
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
        """Returns whether the source has issued an id since the last plan: ids of a context are consecutive."""
        for context in self._mapping.contexts:
            if await self._source.has_schema(context, self._highest.get(context, 0) + 1):
                return True
        return False


def _in_order(steps: Sequence[SchemaStep], refused: Collection[VersionKey]) -> list[SchemaStep]:
    """Returns *steps* with those for *refused* versions, for what refers to them, and the reservations of their ids at the end."""
    if not refused:
        return list(steps)
    late = set(refused)
    first: list[SchemaStep] = []
    last: list[SchemaStep] = []
    for step in steps:
        if isinstance(step, RegisterVersion) and _refers_to(step, late):
            late.add(step.version.key)
        match step:
            case RegisterVersion(version):
                is_late = version.key in late or _reserves(step)
            case DeleteVersion(subject, number):
                is_late = (subject, number) in late
            case _:
                is_late = False
        (last if is_late else first).append(step)
    return first + last


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
