"""What simulated brokers answer besides fetch and produce; one method for each request, named as the protocol names it."""

from collections.abc import Mapping
from types import SimpleNamespace as Answer
from typing import TYPE_CHECKING, Any

from mirrorflow_core.partitions import TopicPartition
from tests.model import errors
from tests.model.errors import RefusedError
from tests.model.leader import DEFAULTS, PartitionLeader

if TYPE_CHECKING:
    from tests.model.broker import Scheduler, Topic
    from tests.model.coordinator import Coordinator

# Those of Kafka 4.x that kafka-python knows, by api key.
VERSIONS: Mapping[int, tuple[int, int]] = {
    0: (3, 13),
    1: (4, 13),
    2: (1, 11),
    3: (0, 13),
    10: (0, 6),
    18: (0, 4),
    19: (2, 7),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    24: (0, 5),
    26: (0, 5),
    32: (1, 4),
    37: (0, 3),
    44: (0, 1),
    61: (0, 0),
}
LATEST, EARLIEST = -1, -2
_TOPIC, _BROKER = 2, 4  # ConfigResource.Type
_DYNAMIC_TOPIC, _DEFAULT = 1, 5  # ConfigSource
_SET = 0  # AlterConfigOp


class AdminAnswers:
    """See the module; a part of `SimulatedCluster`."""

    alias: str
    cluster_id: str
    world: "Scheduler"
    up: set[int]
    topics: "dict[str, Topic]"
    configs: dict[str, str]
    may_use_transactional_ids: bool
    coordinator: "Coordinator"
    coordinator_node: int

    def led(self, node_id: int, at: TopicPartition, *, epoch: int = -1) -> PartitionLeader:
        raise NotImplementedError

    def create_topic(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> "Topic":
        raise NotImplementedError

    def answer(self, node_id: int, api: str, version: int, request: Any) -> Any:
        """The answer of broker *node_id*."""
        handler = getattr(self, f"_{api}", None)
        if handler is None:
            raise NotImplementedError(f"the simulated broker does not know {api}")
        return handler(node_id, version, request)

    # -- metadata and settings

    def _Metadata(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802 the protocol's name
        names = [*self.topics] if request.topics is None else [one.name for one in request.topics]
        brokers = [Answer(node_id=node, host=self.alias, port=node, rack=None) for node in sorted(self.up)]
        return Answer(
            error_code=0,
            brokers=brokers,
            cluster_id=self.cluster_id,
            controller_id=min(self.up, default=-1),
            topics=[self._topic_answer(name) for name in names],
        )

    def _topic_answer(self, name: str) -> Any:
        topic = self.topics.get(name)
        if topic is None:
            code = errors.UNKNOWN_TOPIC_OR_PARTITION
            return Answer(name=name, topic_id=None, error_code=code, is_internal=False, partitions=[])
        partitions = []
        for number, one in enumerate(topic.partitions):
            has_leader = one.node_id in self.up
            partitions.append(
                Answer(
                    partition_index=number,
                    leader_id=one.node_id if has_leader else -1,
                    leader_epoch=one.leader.epoch,
                    replica_nodes=sorted(self.up),
                    isr_nodes=sorted(self.up),
                    error_code=0 if has_leader else errors.LEADER_NOT_AVAILABLE,
                )
            )
        return Answer(
            name=name, topic_id=topic.topic_id, error_code=0, is_internal=False, partitions=partitions
        )

    def _CreateTopics(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        answers = []
        for one in request.topics:
            code = errors.TOPIC_ALREADY_EXISTS if one.name in self.topics else errors.NONE
            if not code:
                self.create_topic(
                    one.name, one.num_partitions, {entry.name: entry.value for entry in one.configs}
                )
            answers.append(Answer(name=one.name, error_code=code, error_message=None))
        return Answer(topics=answers)

    def _DescribeConfigs(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        results = []
        for resource in request.resources:
            code = errors.NONE
            if resource.resource_type == _BROKER:
                entries = [_entry(name, value, _DEFAULT) for name, value in self.configs.items()]
            elif resource.resource_name in self.topics:
                own = self.topics[resource.resource_name].configs
                entries = [_entry(name, value, _DYNAMIC_TOPIC) for name, value in own.items()]
                entries += [
                    _entry(name, value, _DEFAULT) for name, value in DEFAULTS.items() if name not in own
                ]
            else:
                code, entries = errors.UNKNOWN_TOPIC_OR_PARTITION, []
            wanted = resource.configuration_keys
            results.append(
                Answer(
                    error_code=code,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[one for one in entries if wanted is None or one.name in wanted],
                )
            )
        return Answer(results=results)

    def _IncrementalAlterConfigs(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        answers = []
        for resource in request.resources:
            topic = self.topics.get(resource.resource_name)
            for entry in resource.configs if topic is not None else ():
                assert topic is not None
                if entry.config_operation == _SET:
                    topic.configs[entry.name] = entry.value
                else:
                    topic.configs.pop(entry.name, None)
            code = errors.NONE if topic is not None else errors.UNKNOWN_TOPIC_OR_PARTITION
            answers.append(Answer(error_code=code, error_message=None, resource_name=resource.resource_name))
        return Answer(responses=answers)

    # -- logs

    def _each(self, node_id: int, topics: Any, number: str, about: Any) -> Any:
        """Ask *about* each partition of a request whose partitions call their number *number*."""
        answers = []
        for topic in topics:
            parts = []
            for one in topic.partitions:
                at = TopicPartition(
                    topic.name if hasattr(topic, "name") else topic.topic, getattr(one, number)
                )
                parts.append(about(at, one))
            answers.append(Answer(name=topic.name, topic=topic.name, partitions=parts))
        return answers

    def _ListOffsets(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        def about(at: TopicPartition, one: Any) -> Any:
            offset, epoch, code = -1, -1, errors.NONE
            try:
                leader = self.led(node_id, at, epoch=one.current_leader_epoch if version >= 4 else -1)
                end = leader.last_stable_offset if request.isolation_level else leader.log.high_watermark
                ends = {LATEST: end, EARLIEST: leader.log.start}
                offset = (
                    ends[one.timestamp] if one.timestamp in ends else leader.log.offset_at(one.timestamp, end)
                )
                epoch = leader.epoch
            except RefusedError as error:
                code = error.code
            return Answer(
                partition_index=at.partition, offset=offset, timestamp=-1, leader_epoch=epoch, error_code=code
            )

        return Answer(topics=self._each(node_id, request.topics, "partition_index", about))

    def _OffsetForLeaderEpoch(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        def about(at: TopicPartition, one: Any) -> Any:
            epoch, end, code = -1, -1, errors.NONE
            try:
                leader = self.led(node_id, at, epoch=one.current_leader_epoch if version >= 2 else -1)
                epoch, end = leader.log.end_of_epoch(one.leader_epoch)
            except RefusedError as error:
                code = error.code
            return Answer(partition=at.partition, leader_epoch=epoch, end_offset=end, error_code=code)

        topics = [Answer(name=one.topic, partitions=one.partitions) for one in request.topics]
        return Answer(topics=self._each(node_id, topics, "partition", about))

    def _DescribeProducers(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        answers = []
        for topic in request.topics:
            parts = []
            for number in topic.partition_indexes:
                producers, code = [], errors.NONE
                try:
                    leader = self.led(node_id, TopicPartition(topic.name, number))
                    producers = [_producer(one) for one in leader.producers.producers.values()]
                except RefusedError as error:
                    code = error.code
                parts.append(
                    Answer(
                        partition_index=number,
                        error_code=code,
                        error_message=None,
                        active_producers=producers,
                    )
                )
            answers.append(Answer(name=topic.name, partitions=parts))
        return Answer(topics=answers)

    def _DeleteRecords(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        def about(at: TopicPartition, one: Any) -> Any:
            code = errors.NONE
            try:
                leader = self.led(node_id, at)
                leader.delete_before(leader.log.high_watermark if one.offset < 0 else one.offset)
            except RefusedError as error:
                code = error.code
            return Answer(partition_index=at.partition, low_watermark=-1, error_code=code)

        return Answer(topics=self._each(node_id, request.topics, "partition_index", about))

    # -- transactions

    def _FindCoordinator(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        if self.coordinator_node not in self.up:
            self.coordinator_node = min(self.up)
        is_refused = request.key_type == 1 and not self.may_use_transactional_ids
        code = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_refused else errors.NONE
        found = Answer(key=request.key, node_id=self.coordinator_node, host="", port=0, error_code=code)
        return Answer(error_code=0, coordinators=[found])

    def _InitProducerId(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        transactional_id = request.transactional_id
        if transactional_id is not None and not self.may_use_transactional_ids:
            code, producer_id, epoch = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1
        elif transactional_id is not None and node_id != self.coordinator_node:
            code, producer_id, epoch = errors.NOT_COORDINATOR, -1, -1
        else:
            code, producer_id, epoch = self.coordinator.init_producer_id(
                transactional_id, request.transaction_timeout_ms, self.world.wall_ms
            )
        return Answer(error_code=code, producer_id=producer_id, producer_epoch=epoch)

    def _AddPartitionsToTxn(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        assert version <= 1, "later versions are another protocol (KIP-890)"
        wanted = [
            TopicPartition(topic.name, number)
            for topic in request.v3_and_below_topics
            for number in topic.partitions
        ]
        known = {
            at: at.topic in self.topics and at.partition < len(self.topics[at.topic].partitions)
            for at in wanted
        }
        if not self.may_use_transactional_ids:
            codes = dict.fromkeys(wanted, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        elif not all(known.values()):
            unknown, other = errors.UNKNOWN_TOPIC_OR_PARTITION, errors.OPERATION_NOT_ATTEMPTED
            codes = {at: other if is_known else unknown for at, is_known in known.items()}
        else:
            code = errors.NOT_COORDINATOR
            if node_id == self.coordinator_node:
                code = self.coordinator.add_partitions(
                    request.v3_and_below_transactional_id,
                    request.v3_and_below_producer_id,
                    request.v3_and_below_producer_epoch,
                    wanted,
                    self.world.wall_ms,
                )
            codes = dict.fromkeys(wanted, code)
        by_topic: dict[str, list[Any]] = {}
        for at, code in codes.items():
            answer = Answer(partition_index=at.partition, partition_error_code=code)
            by_topic.setdefault(at.topic, []).append(answer)
        return Answer(
            results_by_topic_v3_and_below=[
                Answer(name=name, results_by_partition=parts) for name, parts in by_topic.items()
            ]
        )

    def _EndTxn(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        assert version <= 1, "later versions raise the epoch with each transaction (KIP-890)"
        if not self.may_use_transactional_ids:
            code = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif node_id != self.coordinator_node:
            code = errors.NOT_COORDINATOR
        else:
            code = self.coordinator.end(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                commit=request.committed,
                now_ms=self.world.wall_ms,
            )
        return Answer(error_code=code)

    def _DescribeTransactions(self, node_id: int, version: int, request: Any) -> Any:  # noqa: N802
        answers = []
        for transactional_id in request.transactional_ids:
            found = self.coordinator.known(transactional_id)
            code = errors.NONE if found is not None else errors.TRANSACTIONAL_ID_NOT_FOUND
            answers.append(
                Answer(
                    error_code=code,
                    transactional_id=transactional_id,
                    transaction_state="" if found is None else found.state.value,
                    producer_id=-1 if found is None else found.producer_id,
                    producer_epoch=-1 if found is None else found.epoch,
                    transaction_timeout_ms=0 if found is None else found.timeout_ms,
                    transaction_start_time_ms=-1 if found is None else found.started_ms,
                    topics=[],
                )
            )
        return Answer(transaction_states=answers)


def _entry(name: str, value: str, source: int) -> Any:
    return Answer(name=name, value=value, config_source=source, read_only=False, is_sensitive=False)


def _producer(one: Any) -> Any:
    return Answer(
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        last_sequence=one.last_sequence,
        last_timestamp=one.last_timestamp,
        coordinator_epoch=one.coordinator_epoch,
        current_txn_start_offset=-1 if one.txn_first_offset is None else one.txn_first_offset,
    )
