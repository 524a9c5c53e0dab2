"""Holds partitions back until the target's registry has the schemas that their fetched records name.

    fetched ──> ids in its records ──> all known ──> copied
                                   └─> others ──> the partition is not fetched; both registries are asked until the target has
                                                  the schemas; then the same records are fetched again

The schema connector copies the schemas; this only reads. Guarantees: records of the configured topics are written after their
schemas, unless that takes longer than the limit, which is logged and counted. The limit is for a partition, also if its records are
fetched again with newer ids. Records do not wait for an id that no registry knows, or whose subjects are not copied. A registry that
refuses one id, or answers late, delays only the partitions with ids that have no response. Registries that answer nothing delay records
for the limit, and then for PROBE_S each PROBE_INTERVAL_S, until they answer again. What is known outlives the session.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.java.patterns import compile_patterns
from mirrorflow_core.schemas.schema_ids import schema_ids
from mirrorflow_core.schemas.subject_mapping import RESERVED_SUBJECT, SubjectMapping
from mirrorflow_core.settings import SCHEMA_WAIT_TOPICS, SchemaWaitSettings
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.registry.registry_client import RegistryClient
from mirrorflow_kafka.registry.registry_reader import RegistryReader
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.copy.task_parts import KnownSchemas

ASK_INTERVAL_S: Final = 0.2  # the schema connector looks for new schemas each second
ASK_TIMEOUT_S: Final = 5.0  # for all ids that are asked for at once; shorter near the end of the limit
ASK_TIMEOUT_MIN_S: Final = 0.05
# An instance of a registry may learn of a schema later than the one that has registered it.
UNKNOWN_ASKED: Final = 2
# A registry that has not answered within the limit is asked for a moment, with records held, and then only this much later.
PROBE_S: Final = 2.0
PROBE_INTERVAL_S: Final = 15.0
WARN_AFTER_S: Final = 5.0  # a new schema takes about a second
KNOWN_MAX: Final = 100_000  # ids; data that begins with a zero byte by chance names ever new ones
SHOWN_MAX: Final = 5  # ids in a message
SCHEMA_MISSING: Final = "SchemaMissing"  # the reason in the counts of errors
log = logging.getLogger("mirrorflow.task")


@dataclass(slots=True, kw_only=True, eq=False)
class _HeldPartition:
    ids: set[int]  # that were not seen on the target yet
    resume: Callable[[], None]
    note_wait: Callable[[], None]
    since_s: float  # monotonic clock; earlier by what earlier fetches of the same records have waited


class SchemaWait:
    """The records of one session that wait for their schemas. *known* is of all sessions; *errors* counts by reason."""

    # What a partition that waits reports.
    obstacle: Final = Obstacle(
        kind=ObstacleKind.FAILED,
        name=SCHEMA_MISSING,
        message="its records wait for schemas that the target's registry lacks",
    )

    def __init__(
        self,
        settings: SchemaWaitSettings,
        known: KnownSchemas,
        errors: Counter[str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        schemas = settings.schemas
        resolve = Resolver(schemas.providers).resolve_required
        self._longest_s = settings.longest_s
        self._target_alias = schemas.target_alias
        self._errors = errors
        self._monotonic = monotonic
        self._pattern = compile_patterns(SCHEMA_WAIT_TOPICS, settings.topics)
        self._mapping = SubjectMapping(
            subjects=schemas.subjects, contexts=schemas.contexts, prefix=schemas.subject_prefix
        )
        self._clients = [RegistryClient(registry, resolve) for registry in (schemas.source, schemas.target)]
        self._source = RegistryReader(self._clients[0], schemas.contexts)
        self._target = RegistryReader(self._clients[1], schemas.contexts.values())
        self._topics: dict[str, bool] = {}  # whether the records of a topic wait
        self._known = known
        self._asked: Counter[int] = Counter()  # how often an id was asked for that is not known
        self._held: list[_HeldPartition] = []
        # By the `resume` of a partition: how long it was held since its records were copied last.
        self._waited_s: dict[Callable[[], None], float] = {}
        self._has_held = asyncio.Event()
        # After the newest ask: why ids have no response, which ones in the order of the next ask, and whether any has one.
        self._problem = ""
        self._without_response: list[int] = []
        self._has_response = True

    def hold(
        self, topic: str, records: memoryview, resume: Callable[[], None], note_wait: Callable[[], None]
    ) -> bool:
        """Returns whether *records*, fetched of *topic*, cannot be copied yet; *resume* is called when they can.

        Until then *note_wait* is called at each ask. *resume* is the same, by comparison, whenever the partition is fetched again.
        """
        if not self._waits(topic):
            return False
        ids = schema_ids(records) - self._known.ids
        now_s = self._monotonic()
        if not ids or (self._known.problem and now_s < self._known.unasked_until_s):
            self._waited_s.pop(resume, None)
            return False
        waited_s = self._waited_s.get(resume, 0.0)
        if waited_s >= self._limit_s:
            # Newer ids than those that it has waited for: other partitions may still wait for them.
            self._give_up(ids, now_s)
            self._waited_s.pop(resume, None)
            return False
        since_s = now_s - waited_s
        self._held.append(_HeldPartition(ids=ids, resume=resume, note_wait=note_wait, since_s=since_s))
        self._has_held.set()
        return True

    def _waits(self, topic: str) -> bool:
        waits = self._topics.get(topic)
        if waits is None:
            waits = self._topics[topic] = self._pattern.matches(topic)
        return waits

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence if records have waited for long, or do not wait."""
        if self._known.problem:
            return (f"Records do not wait for their schemas: {self._known.problem}",)
        now_s = self._monotonic()
        late = {
            schema_id for held in self._held if now_s - held.since_s > WARN_AFTER_S for schema_id in held.ids
        }
        return (f"Records wait, because {self._lacking(late)}. {self._problem}".rstrip(),) if late else ()

    async def run(self) -> None:
        """Asks the registries for what is waited for, until cancelled."""
        try:
            while True:
                if not self._held:
                    self._has_held.clear()
                    await self._has_held.wait()
                await self._ask()
                self._release_late()
                for held in self._held:
                    held.note_wait()
                if self._held:
                    await asyncio.sleep(ASK_INTERVAL_S)
        finally:
            for client in self._clients:
                client.close()

    async def _ask(self) -> None:
        try:
            for client in self._clients:
                client.refresh()
        except MirrorFlowError as error:
            self._problem, self._has_response = str(error), False
            return
        ids = {schema_id for held in self._held for schema_id in held.ids}
        # Those that a slow registry has not answered come first.
        earlier = [schema_id for schema_id in self._without_response if schema_id in ids]
        asks = {
            schema_id: asyncio.create_task(self._ask_for(schema_id))
            for schema_id in (*earlier, *sorted(ids.difference(earlier)))
        }
        timeout_s = self._ask_timeout_s()
        try:
            answered, _ = await asyncio.wait(asks.values(), timeout=timeout_s)
        finally:
            await asyncio.gather(*(cancel_and_wait(ask) for ask in asks.values() if not ask.done()))
        late = f"A schema registry did not answer within {timeout_s:g} s."
        problems = {schema_id: ask.result() if ask in answered else late for schema_id, ask in asks.items()}
        self._without_response = [schema_id for schema_id, problem in problems.items() if problem]
        self._problem = next(filter(None, problems.values()), "")
        self._has_response = len(self._without_response) < len(asks)
        if self._has_response:
            self._known.note_response()

    def _ask_timeout_s(self) -> float:
        """Returns how long registries may take: no longer than any partition may still wait."""
        waited_s = self._monotonic() - min(held.since_s for held in self._held)
        return round(max(ASK_TIMEOUT_MIN_S, min(ASK_TIMEOUT_S, self._limit_s - waited_s)), 2)

    async def _ask_for(self, schema_id: int) -> str:
        """Lets records with this id continue, if they need not wait. Returns why there is no response; empty if there is one."""
        try:
            is_settled = await self._is_settled(schema_id)
        except MirrorFlowError as error:
            return str(error)
        if is_settled:
            self._settle({schema_id})
        return ""

    async def _is_settled(self, schema_id: int) -> bool:
        """Returns whether records with this id need not wait any longer."""
        is_known = False
        for context, copy in self._mapping.contexts.items():
            copies = await self._target.subjects_of(copy, schema_id)
            # A placeholder keeps an id from other uses; it is not the schema.
            if any(subject.name != RESERVED_SUBJECT for subject in copies):
                is_known = True
            elif subjects := await self._source.subjects_of(context, schema_id):
                is_known = True
                if self._mapping.selected(subjects):
                    return False
        self._asked[schema_id] += 1
        return is_known or self._asked[schema_id] >= UNKNOWN_ASKED

    def _settle(self, ids: Collection[int]) -> None:
        """Notes that no record waits for *ids* any longer, and lets partitions continue that waited for nothing else."""
        if len(self._known.ids) > KNOWN_MAX:
            self._known.ids.clear()
        self._known.ids.update(ids)
        for schema_id in ids:
            self._asked.pop(schema_id, None)
        for held in self._held:
            held.ids.difference_update(ids)
        self._release({held for held in self._held if not held.ids})

    def _release(self, released: Collection[_HeldPartition]) -> None:
        self._held = [held for held in self._held if held not in released]
        now_s = self._monotonic()
        for held in released:
            self._waited_s[held.resume] = now_s - held.since_s
            held.resume()

    def _release_late(self) -> None:
        """Lets partitions continue that have waited for too long."""
        limit_s, now_s = self._limit_s, self._monotonic()
        late = {held for held in self._held if now_s - held.since_s >= limit_s}
        if not late:
            return
        missing = {schema_id for held in late for schema_id in held.ids}
        self._give_up(missing, now_s)
        if self._has_response:
            self._settle(missing)
        else:
            self._release(late)
            for held in late:
                self._waited_s.pop(held.resume, None)

    @property
    def _limit_s(self) -> float:
        return min(PROBE_S, self._longest_s) if self._known.problem else self._longest_s

    def _give_up(self, missing: Collection[int], now_s: float) -> None:
        self._errors[SCHEMA_MISSING] += 1
        if not self._known.problem:
            log.warning(
                "Records are copied after %g s, before it is known that the registry of %s has the schemas of ids %s. %s",
                self._longest_s,
                self._target_alias,
                _shown(missing),
                self._problem,
            )
        if not self._has_response:
            # Their schemas may be there once the registries answer.
            self._known.note_no_response(self._problem, now_s + PROBE_INTERVAL_S)

    def _lacking(self, ids: Collection[int]) -> str:
        return f"the registry of {self._target_alias} lacks the schemas of ids {_shown(ids)}"


def _shown(ids: Collection[int]) -> str:
    more = f" and {len(ids) - SHOWN_MAX} more" if len(ids) > SHOWN_MAX else ""
    return ", ".join(map(str, sorted(ids)[:SHOWN_MAX])) + more
