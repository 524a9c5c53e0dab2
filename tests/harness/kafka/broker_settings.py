"""Changes settings of running brokers."""

from collections.abc import Mapping

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.harness.kafka.cluster import ADMIN_WAIT_S, KafkaCluster


def alter_brokers(cluster: KafkaCluster, config: Mapping[str, str]) -> None:
    """Sets *config* on every broker. Other settings stay."""
    for id_ in cluster.nodes:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.BROKER, str(id_), incremental_configs=entries)
        cluster.admin.incremental_alter_configs([resource])[resource].result(ADMIN_WAIT_S)
