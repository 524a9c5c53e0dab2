"""What is on the leader of a group alone: the key that nodes sign with, and the connectors that nodes were given as files.

Promises: a file is written to the config topic by who comes to lead, and only if the topic says otherwise; a node whose file
was in force and has been replaced since does not bring it back, for then a newer file, or somebody over REST, has spoken:
a rolling restart with changed files never goes back to the old ones, in whatever order nodes come to lead.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence

from mirrorflow_replicator.connect import herd
from mirrorflow_replicator.connect.session_keys import SessionKey, is_due
from mirrorflow_replicator.connect.worker_records import ConfigRecord
from mirrorflow_replicator.errors import FilesDifferError
from mirrorflow_replicator.kafka.worker_topics import ConfigTopic
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.settings import SessionKeySettings

log = logging.getLogger("mirrorflow.group")


class Leading:
    """See the module. *topic* was read to its end; *files* are connectors' properties."""

    def __init__(
        self, topic: ConfigTopic, rules: SessionKeySettings, files: Sequence[Mapping[str, str]]
    ) -> None:
        self._topic = topic
        self._rules = rules
        self._files = files
        self._in_force: set[str] = set()  # connectors that the topic had as our file has them, at some time
        self._led = False  # whether what only a new leader does is done
        self.problem: FilesDifferError | None = None  # which of our files the group does not go by
        self.look()

    def look(self) -> None:
        """Something may be new in the topic."""
        known = self._topic.configs.connectors
        self._in_force |= {file["name"] for file in self._files if known.get(file["name"]) == file}

    async def lead(self) -> None:
        """Write what is missing. Raises ClusterError."""
        topic, records = self._topic, list[ConfigRecord]()
        if is_due(topic.configs.session_key, self._rules, now_ms=now_ms()):
            key = secrets.token_bytes(self._rules.size_bytes)
            records.append(SessionKey(key=key, algorithm=self._rules.algorithm, created_ms=now_ms()))
        if not self._led:
            files = [file for file in self._files if not self._is_replaced(file)]
            records += herd.seeds(files, topic.configs)
        if records:
            await topic.put(*records, now_ms=now_ms())
        self._led = True

    @property
    def is_new(self) -> bool:
        """Whether this node has not led since another did."""
        return not self._led

    def follow(self) -> None:
        """Another one leads."""
        self._led = False

    def compare(self) -> None:
        """Tell it once where the group does not go by our files."""
        known = self._topic.configs.connectors
        names = tuple(sorted(file["name"] for file in self._files if known.get(file["name"]) != file))
        if names and (self.problem is None or self.problem.connectors != names):
            log.warning("%s: %s", FilesDifferError.reason, FilesDifferError(names))
        self.problem = FilesDifferError(names) if names else None

    def _is_replaced(self, file: Mapping[str, str]) -> bool:
        name = file["name"]
        return name in self._in_force and self._topic.configs.connectors.get(name) != file
