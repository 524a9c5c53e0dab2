"""Holds partitions back until the target's registry has the schemas that their fetched records name.

    fetched ──> ids in its records ──> all known ──> copied
                                   └─> others ──> the partition is not fetched; both registries are asked until the target has
                                                  the schemas; then the same records are fetched again

The schema connector copies the schemas; this only reads. `mirrorflow_core.schemas.schema_wait_rules` decides. Guarantees: records of the configured topics are written after their
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
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.java.patterns import compile_patterns
from mirrorflow_core.schemas import schema_wait_rules as rules
from mirrorflow_core.schemas.schema_ids import schema_ids
from mirrorflow_core.schemas.schema_wait_rules import FetchDecision, SchemaLookup
from mirrorflow_core.schemas.subject_mapping import SubjectMapping
from mirrorflow_core.settings import SCHEMA_WAIT_TOPICS, SchemaWaitSettings
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.registry.registry_client import RegistryClient
from mirrorflow_kafka.registry.registry_reader import RegistryReader
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.copy.task_parts import KnownSchemas

ASK_INTERVAL_S: Final = 0.2  # the schema connector looks for new schemas each second
PROBE_INTERVAL_S: Final = 15.0  # until a registry is asked again that has not answered within the limit
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
        self._asked_last = rules.AskOutcome()

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
        waited_s = self._waited_s.get(resume, 0.0)
        decision = rules.decide_fetched(
            ids,
            waited_s=waited_s,
            limit_s=self._limit_s,
            may_ask=self._known.problem is None or now_s >= self._known.unasked_until_s,
        )
        if decision is not FetchDecision.HOLD:
            if decision is FetchDecision.COPY_UNSEEN:
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
        if self._known.problem is not None:
            return (f"Records do not wait for their schemas: {self._known.problem}",)
        now_s = self._monotonic()
        late = {
            schema_id for held in self._held if now_s - held.since_s > WARN_AFTER_S for schema_id in held.ids
        }
        return (
            (f"Records wait, because {self._lacking(late)}. {self._asked_last.problem or ''}".rstrip(),)
            if late
            else ()
        )

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
            self._asked_last = replace(self._asked_last, problem=str(error), has_response=False)
            return
        ids = {schema_id for held in self._held for schema_id in held.ids}
        asks = {
            schema_id: asyncio.create_task(self._ask_for(schema_id))
            for schema_id in rules.ask_order(ids, self._asked_last.without_response)
        }
        waited_s = self._monotonic() - min(held.since_s for held in self._held)
        timeout_s = rules.ask_timeout_s(self._limit_s, waited_s)
        try:
            answered, _ = await asyncio.wait(asks.values(), timeout=timeout_s)
        finally:
            await asyncio.gather(*(cancel_and_wait(ask) for ask in asks.values() if not ask.done()))
        late = f"A schema registry did not answer within {timeout_s:g} s."
        self._asked_last = rules.ask_outcome(
            {schema_id: ask.result() if ask in answered else late for schema_id, ask in asks.items()}
        )
        if self._asked_last.has_response:
            self._known.note_response()

    async def _ask_for(self, schema_id: int) -> str | None:
        """Lets records with this id continue, if they need not wait. Returns why there is no response; None if there is one."""
        try:
            is_settled = await self._is_settled(schema_id)
        except MirrorFlowError as error:
            return str(error)
        if is_settled:
            self._settle({schema_id})
        return None

    async def _is_settled(self, schema_id: int) -> bool:
        """Returns whether records with this id need not wait any longer."""
        lookups = []
        for context, copy in self._mapping.contexts.items():
            lookups.append(await self._look_up(schema_id, context, copy))
            if lookups[-1] is SchemaLookup.TO_BE_COPIED:
                return False
        self._asked[schema_id] += 1
        return not rules.must_wait(lookups, times_asked=self._asked[schema_id])

    async def _look_up(self, schema_id: int, context: str, copy: str) -> SchemaLookup:
        """Returns where the *context* of the source and its *copy* have the schema."""
        if rules.is_copied(await self._target.subjects_of(copy, schema_id)):
            return SchemaLookup.ON_TARGET
        return rules.lookup_on_source(await self._source.subjects_of(context, schema_id), self._mapping)

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
        if self._asked_last.has_response:
            self._settle(missing)
        else:
            self._release(late)
            for held in late:
                self._waited_s.pop(held.resume, None)

    @property
    def _limit_s(self) -> float:
        return rules.wait_limit_s(self._longest_s, is_answering=not self._known.problem)

    def _give_up(self, missing: Collection[int], now_s: float) -> None:
        self._errors[SCHEMA_MISSING] += 1
        if not self._known.problem:
            log.warning(
                "Records are copied after %g s, before it is known that the registry of %s has the schemas of ids %s. %s",
                self._longest_s,
                self._target_alias,
                _shown(missing),
                self._asked_last.problem or "",
            )
        if not self._asked_last.has_response:
            # Their schemas may be there once the registries answer.
            self._known.note_no_response(self._asked_last.problem or "", now_s + PROBE_INTERVAL_S)

    def _lacking(self, ids: Collection[int]) -> str:
        return f"the registry of {self._target_alias} lacks the schemas of ids {_shown(ids)}"


def _shown(ids: Collection[int]) -> str:
    more = f" and {len(ids) - SHOWN_MAX} more" if len(ids) > SHOWN_MAX else ""
    return ", ".join(map(str, sorted(ids)[:SHOWN_MAX])) + more
