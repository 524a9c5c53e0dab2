"""Holds partitions back until the target's registry has the schemas that their fetched records name.

    fetched ──> ids in its records ──> all known ──> copied
                                   └─> others ──> the partition is not fetched; both registries are asked until the target has
                                                  the schemas; then the same records are fetched again

The schema connector copies the schemas; this only reads. Guarantees: records of the configured topics are written after their
schemas, unless that takes longer than the limit, which is logged and counted. Records do not wait for an id that no registry knows, or
whose subjects are not copied. A registry that does not answer delays records once, until it answers again.
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
from mirrorflow_core.schemas.subject_mapping import SubjectMapping
from mirrorflow_core.settings import SCHEMA_WAIT_TOPICS, SchemaWaitSettings
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_kafka.registry.registry_client import RegistryClient
from mirrorflow_kafka.registry.registry_reader import RegistryReader
from mirrorflow_replicator.config.providers import Resolver

ASK_INTERVAL_S: Final = 0.2  # the schema connector looks for new schemas each second
ASK_TIMEOUT_S: Final = 5.0  # for all ids that are asked for at once
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


@dataclass(slots=True, kw_only=True)
class _HeldPartition:
    ids: set[int]  # that were not seen on the target yet
    resume: Callable[[], None]
    since_s: float  # monotonic clock


class SchemaWait:
    """The records of one task that wait for their schemas. *errors* counts by reason."""

    # What a partition that waits reports.
    obstacle: Final = Obstacle(
        kind=ObstacleKind.FAILED,
        name=SCHEMA_MISSING,
        message="its records wait for schemas that the target's registry lacks",
    )

    def __init__(
        self,
        settings: SchemaWaitSettings,
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
        self._known: set[int] = set()
        self._asked: Counter[int] = Counter()  # how often an id was asked for that is not known
        self._held: list[_HeldPartition] = []
        self._has_held = asyncio.Event()
        self._problem = ""  # why the registries do not answer
        self._is_unanswered = False  # records no longer wait, because of `_problem`
        self._unasked_until_s = 0.0  # monotonic clock

    def hold(self, topic: str, records: memoryview, resume: Callable[[], None]) -> bool:
        """Returns whether *records*, fetched of *topic*, cannot be copied yet; *resume* is called when they can."""
        if not self._waits(topic):
            return False
        ids = schema_ids(records) - self._known
        now_s = self._monotonic()
        if not ids or (self._is_unanswered and now_s < self._unasked_until_s):
            return False
        self._held.append(_HeldPartition(ids=ids, resume=resume, since_s=now_s))
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
        if self._is_unanswered:
            return (f"Records do not wait for their schemas: {self._problem}",)
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
                self._release()
                if self._held:
                    await asyncio.sleep(ASK_INTERVAL_S)
        finally:
            for client in self._clients:
                client.close()

    async def _ask(self) -> None:
        ids = sorted({schema_id for held in self._held for schema_id in held.ids})
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                for client in self._clients:
                    client.refresh()
                are_settled = await asyncio.gather(*(self._is_settled(schema_id) for schema_id in ids))
        except MirrorFlowError as error:
            self._problem = str(error)
        except TimeoutError:
            self._problem = f"A schema registry did not answer within {ASK_TIMEOUT_S:g} s."
        else:
            self._problem, self._is_unanswered = "", False
            self._settle([schema_id for schema_id, settled in zip(ids, are_settled, strict=True) if settled])

    async def _is_settled(self, schema_id: int) -> bool:
        """Returns whether records with this id need not wait any longer."""
        is_known = False
        for context, copy in self._mapping.contexts.items():
            if await self._target.has_schema(copy, schema_id):
                is_known = True
            elif subjects := await self._source.subjects_of(context, schema_id):
                is_known = True
                if self._mapping.selected(subjects):
                    return False
        self._asked[schema_id] += 1
        return is_known or self._asked[schema_id] >= UNKNOWN_ASKED

    def _settle(self, ids: Collection[int]) -> None:
        """Notes that no record waits for *ids* any longer."""
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        self._known.update(ids)
        for schema_id in ids:
            self._asked.pop(schema_id, None)
        for held in self._held:
            held.ids.difference_update(ids)

    def _release(self) -> None:
        """Lets partitions continue whose schemas have arrived, or that have waited for too long."""
        limit_s = min(PROBE_S, self._longest_s) if self._is_unanswered else self._longest_s
        now_s = self._monotonic()
        late = [held for held in self._held if held.ids and now_s - held.since_s >= limit_s]
        if late:
            self._give_up({schema_id for held in late for schema_id in held.ids}, now_s)
        released = [held for held in self._held if held in late or not held.ids]
        self._held = [held for held in self._held if held not in released]
        for held in released:
            held.resume()

    def _give_up(self, missing: Collection[int], now_s: float) -> None:
        self._errors[SCHEMA_MISSING] += 1
        if not self._is_unanswered:
            log.warning(
                "Records are copied before their schemas, because %s, after %g s. %s",
                self._lacking(missing),
                self._longest_s,
                self._problem,
            )
        if self._problem:
            # Their schemas may be there once the registries answer.
            self._is_unanswered, self._unasked_until_s = True, now_s + PROBE_INTERVAL_S
        else:
            self._settle(missing)

    def _lacking(self, ids: Collection[int]) -> str:
        shown = ", ".join(map(str, sorted(ids)[:SHOWN_MAX]))
        more = f" and {len(ids) - SHOWN_MAX} more" if len(ids) > SHOWN_MAX else ""
        return f"the registry of {self._target_alias} lacks the schemas of ids {shown}{more}"
