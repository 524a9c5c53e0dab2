"""What a node writes to the config topic while other calls change it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from mirrorflow_core.connect.worker_records import ConnectorConfig, TaskConfig, TasksCommit
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.stores.worker_topics import ConfigTopic

TASKS = (TaskConfig(connector="a", task=0, properties={"v": "x"}), TasksCommit(connector="a", tasks=1))


class TopicLog:
    """One node's access to a compacted topic in memory, whose requests let other calls run."""

    def __init__(self, records: list[Record] | None = None) -> None:
        self.records: list[Record] = [] if records is None else records
        self._read_to = 0

    async def append(self, values: Iterable[tuple[bytes, bytes | None]], *, now_ms: int) -> None:
        await asyncio.sleep(0)
        for key, value in values:
            self.records.append(Record(len(self.records), now_ms, key, value))

    async def read_new(self, take: Callable[[Record], None]) -> None:
        await asyncio.sleep(0)
        for record in self.records[self._read_to :]:
            take(record)
        self._read_to = len(self.records)


def topic_with(log: TopicLog) -> ConfigTopic:
    topic = ConfigTopic(cast("Any", None), cast("Any", None))
    topic._log = cast("Any", log)
    return topic


def test_task_configs_are_not_written_after_the_deletion_of_their_connector():
    """Both calls found the connector there. A new connector of that name would begin with the tasks."""

    async def run() -> list[bytes | None]:
        log = TopicLog()
        topic = topic_with(log)
        await topic.put(ConnectorConfig(connector="a", properties={}), now_ms=1)
        await asyncio.gather(
            topic.put(ConnectorConfig(connector="a", properties=None), now_ms=2), topic.put(*TASKS, now_ms=2)
        )
        return [record.key for record in log.records]

    assert asyncio.run(run()) == [b"connector-a", b"connector-a"]


def test_task_configs_of_a_connector_that_another_node_has_deleted_are_not_written():
    async def run() -> int:
        log = TopicLog()
        topic, others = topic_with(log), topic_with(TopicLog(log.records))
        await topic.put(ConnectorConfig(connector="a", properties={}), now_ms=1)
        await others.put(ConnectorConfig(connector="a", properties=None), now_ms=2)
        await topic.put(*TASKS, now_ms=3)
        return len(log.records)

    assert asyncio.run(run()) == 2


def test_a_connector_is_written_with_its_tasks():
    async def run() -> dict[str, Any]:
        topic = topic_with(TopicLog())
        await topic.put(ConnectorConfig(connector="a", properties={}), *TASKS, now_ms=1)
        return topic.configs.tasks

    assert asyncio.run(run()) == {"a": ({"v": "x"},)}
