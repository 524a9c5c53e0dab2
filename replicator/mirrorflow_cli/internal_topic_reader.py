"""Reads the internal topics of the flows of files for the console, with the credentials of these files."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from mirrorflow_cli.errors import CommandError
from mirrorflow_cli.flow_arguments import source_settings
from mirrorflow_cli.internal_records import TOPICS, DumpTopic, decoded, read_topic
from mirrorflow_console.internal_topics import RECORDS_MAX, InternalRecord, InternalTopic
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.settings import SourceSettings
from mirrorflow_operator.plan.properties import Plan

# A page may take as long. `mirrorflow dump` reads a topic of any length.
READ_MAX_S: Final = 10.0


class FileFlowTopics:
    """The internal topics of *plans*, which are read at each request; two requests read one after the other."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans: Mapping[str, Plan] = {plan.flow: plan for plan in plans}
        self._reading = asyncio.Lock()

    @property
    def flows(self) -> Sequence[str]:
        """The names of the flows."""
        return [*self._plans]

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of topics."""
        return [*TOPICS]

    async def read(self, flow: str, kind: str) -> InternalTopic:
        """Returns the newest records of a topic, or why it cannot be read."""
        planned = self._plans[flow]
        try:
            settings, _ = source_settings(planned)
            topic = TOPICS[kind](planned, settings)
            async with self._reading, asyncio.timeout(READ_MAX_S):
                return await _read(topic, settings)
        except TimeoutError:
            problem = f"Reading takes more than {READ_MAX_S:g} s. `mirrorflow dump {kind}` reads a topic of any length."
        except (CommandError, MirrorFlowError) as error:
            problem = str(error)
        return InternalTopic(problem=problem)


async def _read(topic: DumpTopic, settings: SourceSettings) -> InternalTopic:
    newest: deque[InternalRecord] = deque(maxlen=RECORDS_MAX)
    total = 0
    async for partition, record in read_topic(topic, settings):
        total += 1
        newest.append(
            InternalRecord(
                partition=partition,
                offset=record.offset,
                timestamp_ms=record.timestamp,
                fields=decoded(topic, record),
            )
        )
    return InternalTopic(name=topic.name, cluster=topic.client.alias, records=tuple(newest), total=total)
