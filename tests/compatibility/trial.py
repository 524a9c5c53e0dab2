"""Runs a flow between two clusters, kills it, and checks each of its promises with independent clients.

Records are written, read and compared by Java clients, and checkpoints are translated by Java's RemoteClusterUtils. All
names begin with the same random prefix. The flow leaves its topics, group and ACL on the clusters.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mirrorflow_core.errors import BrokerError, ClusterError, UnsupportedBrokerError
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_core.topics.topic_configs import ConfigChange
from mirrorflow_core.wire.error_codes import SECURITY_DISABLED
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.version import version
from tests.compatibility.endpoints import Endpoint
from tests.compatibility.result import CHECKS, Outcome, Result, Verdict
from tests.harness.kafka.mirror_client import translated_offsets
from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kafka.tools import Record, digest, load, records
from tests.harness.replicator import Replicator

PARTITIONS = 3
FIRST_RECORDS, MORE_RECORDS = 20_000, 2_000
KILLS = 2
SETTINGS = {"retention.ms": "777600000", "max.message.bytes": "900000"}
CHANGED_SETTING = ConfigChange(name="retention.ms", value="864000000")
PRINCIPAL = "User:mirrorflow-compatibility"
# Each step takes seconds. A distant cluster that is busy may need a minute.
STEP_WAIT_S = 180.0
READ_COMMITTED = "read_committed"


@dataclass(slots=True, kw_only=True)
class Trial:
    """A flow from *source* to *target*. `run` may be called once."""

    source: Endpoint
    target: Endpoint
    folder: Path
    prefix: str = field(default_factory=lambda: f"mirrorflow-trial-{uuid.uuid4().hex[:8]}")

    @property
    def topic(self) -> str:
        return f"{self.prefix}-orders"

    @property
    def alias(self) -> str:
        return self.prefix

    @property
    def copy(self) -> str:
        return f"{self.alias}.{self.topic}"

    def run(self) -> Result:
        """Runs the flow and all checks."""
        guarantee = {"guarantee": "", "guaranteeReason": ""}
        with self._replicator() as replicator:
            try:
                self._fill(FIRST_RECORDS)
                self._kill_while_copying(replicator)
                guarantee = self._wait_until_copied(replicator)
            except (ClusterError, HarnessError) as error:
                verdicts = {name: self._verdict(Outcome.FAILED, error) for name in CHECKS}
            else:
                checks: dict[str, Callable[[], str]] = {
                    "copy": lambda: self._check_copy(exact=guarantee["guarantee"] == "exactly-once"),
                    "groups": self._check_groups,
                    "checkpoints": self._check_checkpoints,
                    "settings": self._check_settings,
                    "acls": self._check_acls,
                }
                verdicts = {name: self._checked(check) for name, check in checks.items()}
        return Result(
            source=self.source.name,
            target=self.target.name,
            mirrorflow=version(),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
            guarantee=guarantee["guarantee"],
            guarantee_reason=self._without_addresses(guarantee["guaranteeReason"] or ""),
            verdicts=verdicts,
        )

    # The flow.

    def _replicator(self) -> Replicator:
        worker = self.target.java_client() | {
            "offset.storage.topic": f"mm2-offsets.{self.alias}.internal",
            "offset.storage.replication.factor": "-1",
            "offset.storage.partitions": "1",
            "mirrorflow.http.listeners": "http://127.0.0.1:0",
        }
        flow = {
            "source.cluster.alias": self.alias,
            "target.cluster.alias": f"{self.alias}-target",
            "topics": f"{self.prefix}.*",
            "groups": f"{self.prefix}.*",
            "replication.factor": "-1",
            "offset-syncs.topic.replication.factor": "-1",
            "checkpoints.topic.replication.factor": "-1",
            "sync.group.offsets.enabled": "true",
        }
        for interval in (
            "refresh.topics", "refresh.groups", "emit.checkpoints", "sync.group.offsets", "sync.topic.configs",
            "sync.topic.acls",
        ):  # fmt: skip
            flow[f"{interval}.interval.seconds"] = "2"
        for side, endpoint in (("source", self.source), ("target", self.target)):
            flow |= {f"{side}.cluster.{key}": value for key, value in endpoint.properties.items()}
        connectors = [
            flow | {"name": name, "connector.class": name}
            for name in ("MirrorSourceConnector", "MirrorCheckpointConnector")
        ]
        return Replicator(form="standalone", files=(worker, *connectors), folder=self.folder)

    def _fill(self, count: int) -> None:
        """Creates the source topic, writes *count* records, and commits a group in the middle of each partition."""
        topic = admin.NewTopic(name=self.topic, partitions=PARTITIONS, configs=SETTINGS)
        self.source.call(lambda cluster: admin.create_topic_and_wait(cluster, topic))
        load(self.source, self.topic, count, keys=True, headers=2, null_every=7, codec="lz4")
        middle = {
            TopicPartition(self.topic, partition): Committed(offset=records_ // 2, metadata="")
            for partition, (records_, _) in digest(self.source, self.topic).items()
        }
        codes = self.source.call(lambda cluster: groups.commit_offsets(cluster, self.prefix, middle))
        assert set(codes.values()) == {0}, codes

    def _kill_while_copying(self, replicator: Replicator) -> None:
        """Kills the flow twice: as soon as records are on the target, and while more are written to the source."""
        wait_until("records are on the target", self._target_end, timeout_s=STEP_WAIT_S)
        replicator.kill()
        replicator.start()
        load(self.source, self.topic, MORE_RECORDS, keys=True, first=FIRST_RECORDS)
        replicator.kill()
        replicator.start()

    def _target_end(self) -> int:
        """Returns the sum of the copy's end offsets, or 0 while the copy does not exist."""
        partitions = [TopicPartition(self.copy, number) for number in range(PARTITIONS)]

        async def ends(cluster: Cluster) -> int:
            await cluster.refresh([self.copy])
            if any(cluster.leader(*partition) is None for partition in partitions):
                return 0
            log_ends = await admin.list_offsets(cluster, partitions, LATEST)
            return sum(listed.offset for listed in log_ends.values() if not listed.error)

        return self.target.call(ends)

    def _wait_until_copied(self, replicator: Replicator) -> dict[str, str]:
        """Waits until every record is copied, and returns the guarantee and its reason as reported by the flow."""
        total = FIRST_RECORDS + MORE_RECORDS

        def reports() -> list[dict[str, str]]:
            rows = [report for report in replicator.partitions() if report["topic"] == self.topic]
            is_complete = sum(report["sourceOffset"] or 0 for report in rows) >= total
            return rows if is_complete and all(report["lagRecords"] == 0 for report in rows) else []

        return wait_until(f"{total} records are copied", reports, timeout_s=STEP_WAIT_S)[0]

    # The checks: each returns its figures, or raises.

    def _check_copy(self, *, exact: bool) -> str:
        expected = digest(self.source, self.topic, isolation=READ_COMMITTED)
        count = sum(records_ for records_, _ in expected.values())
        assert count == FIRST_RECORDS + MORE_RECORDS, f"{count} records on the source"
        if expected == digest(self.target, self.copy, isolation=READ_COMMITTED):
            return f"{count:,} records in order, none twice, after {KILLS} kills"
        copied = self._records(self.target, self.copy)
        missing = set(map(_content, self._records(self.source, self.topic))) - set(map(_content, copied))
        repeated = len(copied) - count
        assert not missing, f"{len(missing)} records are missing"
        assert not exact, f"{repeated} records more than on the source, or another order"
        return f"{count:,} records, {repeated} of them again, after {KILLS} kills"

    def _check_groups(self) -> str:
        """Checks that the group continues on the target at the record at which it stopped on the source."""
        source = self._by_partition(self.source, self.topic)
        copied = self._by_partition(self.target, self.copy)
        committed = self.source.call(lambda cluster: groups.fetch_offsets(cluster, self.prefix))
        again = -1

        def is_exact() -> bool:
            nonlocal again
            translated = self._group_on_target()
            if len(translated) < PARTITIONS:
                return False
            ahead = [
                committed[TopicPartition(self.topic, number)].offset
                - _position(
                    source[number], copied[number], translated[TopicPartition(self.copy, number)].offset
                )
                for number in range(PARTITIONS)
            ]
            assert min(ahead) >= 0, f"the group skips {-min(ahead)} records"
            again = sum(ahead)
            return again == 0

        try:
            wait_until("the group is translated exactly", is_exact, timeout_s=STEP_WAIT_S)
        except HarnessError:
            assert again >= 0, "the group's offsets are not on the target"
            return f"{again} records are read again"
        return "at the same record"

    def _check_checkpoints(self) -> str:
        """Checks that Java translates the group to the offsets that the flow has committed."""
        committed = {tuple(key): point.offset for key, point in self._group_on_target().items()}
        translated = translated_offsets(self.target, self.alias, self.prefix)
        assert committed == {key: offset for key, (offset, _) in translated.items()}, (
            "Java reads other offsets"
        )
        return "read by Java"

    def _check_settings(self) -> str:
        """Checks that the copy has the source's settings, and that a change is synced."""
        self._wait_for_settings(SETTINGS)
        change = {self.topic: [CHANGED_SETTING]}
        refusals = self.source.call(lambda cluster: admin.alter_topic_configs(cluster, change))
        assert not any(refusals.values()), f"the source refuses a change: {refusals}"
        assert CHANGED_SETTING.value is not None
        self._wait_for_settings(SETTINGS | {CHANGED_SETTING.name: CHANGED_SETTING.value})
        return "followed"

    def _check_acls(self) -> str:
        """Checks that an ACL of the topic appears on its copy.

        This is the last check, because on some clusters it denies the topic to all others.
        """
        read = AclBinding(
            resource_type=TOPIC,
            resource_name=self.topic,
            pattern_type=int(PatternType.LITERAL),
            principal=PRINCIPAL,
            host="*",
            operation=int(Operation.READ),
            permission_type=int(Permission.ALLOW),
        )
        self.target.call(lambda cluster: admin.describe_acls(cluster, resource_type=TOPIC))
        refusals = self.source.call(lambda cluster: admin.create_acls(cluster, [read]))
        assert not any(refusals.values()), f"the source refuses an ACL: {refusals[read]}"

        def has_arrived() -> bool:
            there = self.target.call(lambda cluster: admin.describe_acls(cluster, resource_type=TOPIC))
            return any((acl.resource_name, acl.principal) == (self.copy, PRINCIPAL) for acl in there)

        wait_until("the ACL is on the target", has_arrived, timeout_s=STEP_WAIT_S)
        return "followed"

    # Parts of them.

    def _checked(self, check: Callable[[], str]) -> Verdict:
        try:
            return Verdict(outcome=Outcome.PASSED, detail=check())
        except UnsupportedBrokerError as error:
            return self._verdict(Outcome.UNAVAILABLE, error)
        except BrokerError as error:
            disabled = error.code == SECURITY_DISABLED
            return self._verdict(Outcome.UNAVAILABLE if disabled else Outcome.FAILED, error)
        except (AssertionError, ClusterError, HarnessError) as error:
            return self._verdict(Outcome.FAILED, error)

    def _verdict(self, outcome: Outcome, error: Exception) -> Verdict:
        sentence = (str(error).splitlines() or [type(error).__name__])[0]
        return Verdict(outcome=outcome, detail=self._without_addresses(sentence))

    def _without_addresses(self, text: str) -> str:
        return self.target.without_addresses(self.source.without_addresses(text))

    def _group_on_target(self) -> dict[TopicPartition, Committed]:
        return self.target.call(lambda cluster: groups.fetch_offsets(cluster, self.prefix))

    def _wait_for_settings(self, expected: dict[str, str]) -> None:
        def has_settings() -> bool:
            configs = self.target.call(lambda cluster: admin.describe_topic_configs(cluster, [self.copy]))
            actual = {entry.name: entry.value for entry in configs.get(self.copy, ())}
            return all(actual.get(name) == value for name, value in expected.items())

        wait_until(f"the copy has {expected}", has_settings, timeout_s=STEP_WAIT_S)

    def _records(self, endpoint: Endpoint, topic: str) -> list[Record]:
        return records(endpoint, topic, isolation=READ_COMMITTED, payload="sha256")

    def _by_partition(self, endpoint: Endpoint, topic: str) -> list[list[Record]]:
        records = self._records(endpoint, topic)
        return [[record for record in records if record.partition == number] for number in range(PARTITIONS)]


def _content(record: Record) -> tuple[object, ...]:
    return (record.partition, record.timestamp, record.key, record.value, record.headers)


def _position(source: list[Record], copied: list[Record], offset: int) -> int:
    """Returns the index in *source* of the first copied record at or after target *offset*, or its length after the
    last one.
    """
    following = next((record for record in copied if record.offset >= offset), None)
    if following is None:
        return len(source)
    return next(index for index, record in enumerate(source) if _content(record) == _content(following))
