"""Re-exports the admin requests of one cluster, so that callers write `admin.create_topics`; reads of logs (`log_reader`,
`transaction_log_reader`) and groups (`groups`) are imported from their modules.
"""

# ruff: noqa: F401

from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, ConfigSource
from mirrorflow_core.wire.error_codes import BrokerRefusal
from mirrorflow_kafka.admin.acls import cluster_operations, create_acls, delete_acls, describe_acls
from mirrorflow_kafka.admin.configs import (
    DescribedConfigs,
    alter_topic_configs,
    describe_broker_configs,
    describe_brokers,
    describe_topic_configs,
    describe_topic_setting,
    try_describe_topic_configs,
)
from mirrorflow_kafka.admin.log_requests import (
    ActiveProducer,
    EpochEnd,
    ListedOffset,
    ProducersResponse,
    append,
    appended_ends,
    delete_records,
    describe_producers,
    end_offset_for_leader_epoch,
    list_offsets,
    log_offsets,
    log_sizes,
    offsets_at,
    produce,
    produce_in_transaction,
)
from mirrorflow_kafka.admin.topics import (
    NewTopic,
    create_partitions,
    create_topic_and_wait,
    create_topics,
    list_topics,
    naming_leaderless,
    topic_operations,
    wait_for_leaders,
)
from mirrorflow_kafka.admin.transactions import (
    OF_PARTITION,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    may_coordinate,
    may_write_as,
    raise_for_refused,
    transactional_ids_of,
    try_add_partitions_to_txn,
)
