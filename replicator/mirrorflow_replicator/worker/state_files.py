"""Follows `mirrorflow.state` in the files of connectors while they run.

The kubelet updates the files of a mounted ConfigMap in place, so a MirrorFlow is paused without another pod.
Every other setting in the files takes effect at the next start.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_kafka.security.rotation import LOOK_S
from mirrorflow_replicator.config import keys
from mirrorflow_replicator.config.keys import read_properties
from mirrorflow_replicator.config.providers import Resolver

KEY: Final = "mirrorflow.state"
RUNNING: Final = "running"
PAUSED: Final = "paused"
States = Mapping[str, str]  # RUNNING or PAUSED, by the connector's name

log = logging.getLogger("mirrorflow.worker")


class StateFiles:
    """The states in the texts that *read* returns, one for each file of a connector.

    *providers* are the worker's config providers.
    """

    def __init__(self, read: Callable[[], Sequence[str]], providers: Mapping[str, str]) -> None:
        self._read = read
        self._providers = providers
        self._texts: tuple[str, ...] = ()
        self._problem = ""

    async def follow(self, apply: Callable[[States], None]) -> None:
        """Polls the files until cancelled; passes the states to *apply* whenever a file has changed."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.poll(apply)

    def poll(self, apply: Callable[[States], None]) -> None:
        """Applies the states of changed files; if a file is unusable, logs that once and keeps all states."""
        try:
            texts = tuple(self._read())
            if texts == self._texts:
                return
            states = dict(self._state(text) for text in texts)
        except (OSError, SettingError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("The changed files of the connectors are not used: %s", error)
            return
        self._texts, self._problem = texts, ""
        apply(states)

    def _state(self, text: str) -> tuple[str, str]:
        """Returns name and state of the connector in *text*. Raises SettingError."""
        properties = keys.canonical(read_properties(text, []), [])
        read = PropertyReader(properties, Resolver({**self._providers, **properties}))
        return read.text("name"), read.choice(KEY, (RUNNING, PAUSED), RUNNING)


def with_state(properties: Mapping[str, str], state: str) -> dict[str, str]:
    """Returns the properties of a connector with that state; RUNNING, the default, is left out.

    Properties that have it already stay as they are written.
    """
    if properties.get(KEY, RUNNING).strip().lower() == state:
        return dict(properties)
    others = {key: value for key, value in properties.items() if key != KEY}
    return others if state == RUNNING else {**others, KEY: state}
