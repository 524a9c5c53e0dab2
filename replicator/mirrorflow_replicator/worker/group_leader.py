"""The leader's duties in a group: the session key that nodes sign with, and connectors from property files.

Guarantees: a new leader writes its files to the config topic, and only those that differ from it. A node
whose file was in force and has been replaced since (by a newer file, or over REST) does not restore it. So a
rolling restart with changed files never returns to the old ones, in whatever order nodes become leader.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence

from mirrorflow_core.connect.session_keys import SessionKey, is_due
from mirrorflow_core.connect.worker_records import ConfigRecord
from mirrorflow_core.errors import FilesDifferError
from mirrorflow_core.settings import SessionKeySettings
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.http import command_decisions
from mirrorflow_replicator.process.clock import now_ms
from mirrorflow_replicator.worker.state_files import RUNNING, with_state

log = logging.getLogger("mirrorflow.group")


class GroupLeader:
    """Writes what only the leader writes. *topic* was read to its end; *files* are connectors' properties."""

    def __init__(
        self, topic: ConfigTopic, rules: SessionKeySettings, files: Sequence[Mapping[str, str]]
    ) -> None:
        self._topic = topic
        self._rules = rules
        self._files = files
        self._in_force: set[str] = set()  # connectors that the topic once had as in our file
        self._led = False  # whether the steps of a new leader are done
        self.problem: FilesDifferError | None = None  # which of our files the topic differs from
        self.look()

    def look(self) -> None:
        """Notes which of our files are in force, after the topic may have changed."""
        known = self._topic.configs.connectors
        self._in_force |= {file["name"] for file in self._files if known.get(file["name"]) == file}

    def renew(self, files: Sequence[Mapping[str, str]]) -> None:
        """Replaces our files; the leader writes those that differ from the topic."""
        self._files = files
        self._in_force.clear()
        self.look()
        self._led = False

    async def lead(self) -> None:
        """Writes a due session key and, when newly elected, our files. Raises ClusterError."""
        topic, records = self._topic, list[ConfigRecord]()
        if is_due(topic.configs.session_key, self._rules, now_ms=now_ms()):
            key = secrets.token_bytes(self._rules.size_bytes)
            records.append(SessionKey(key=key, algorithm=self._rules.algorithm, created_ms=now_ms()))
        if not self._led:
            files = [file for file in self._files if not self._is_replaced(file)]
            records += command_decisions.seeds(files, topic.configs)
        if records:
            await topic.put(*records, now_ms=now_ms())
        self._led = True

    @property
    def is_new(self) -> bool:
        """Whether this node has not yet done the steps of a new leader."""
        return not self._led

    def follow(self) -> None:
        """Notes that another node leads."""
        self._led = False

    def compare(self) -> None:
        """Logs once which of our files differ from the topic.

        States may differ for a while: the kubelet does not update the files of all nodes at the same time.
        """
        known = self._topic.configs.connectors
        names = tuple(
            sorted(
                file["name"]
                for file in self._files
                if with_state(known.get(file["name"], {}), RUNNING) != with_state(file, RUNNING)
            )
        )
        if names and (self.problem is None or self.problem.connectors != names):
            log.warning("%s: %s", FilesDifferError.reason, FilesDifferError(names))
        self.problem = FilesDifferError(names) if names else None

    def _is_replaced(self, file: Mapping[str, str]) -> bool:
        name = file["name"]
        return name in self._in_force and self._topic.configs.connectors.get(name) != file
