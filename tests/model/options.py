"""What a world is made of, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_core.settings import (
    LossPolicy,
    OffsetStorageSettings,
    OffsetStore,
    PolicySettings,
    SourceSettings,
)
from tests.model.copier import client
from tests.model.producer_state import KAFKA_4, Rules

TOPIC = "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one world. Durations are seconds."""

    topic: str = TOPIC
    partitions: int = 1
    source_brokers: int = 1
    target_brokers: int = 1
    rules: Rules = KAFKA_4
    transactional_ids: bool = True  # the flow has the ACL for its transactional id
    source_configs: Mapping[str, str] = field(default_factory=dict)
    target_configs: Mapping[str, str] = field(default_factory=dict)
    broker_configs: Mapping[str, str] = field(default_factory=dict)  # of the target
    expiry_check_s: float = 600.0
    read_committed: bool = False
    on_loss: LossPolicy = LossPolicy.FAIL
    flush_interval_s: float = 5.0
    bytes_per_second: int | None = None
    fetch_bytes: int = 57_671_680  # that the source gives at once (fetch.max.bytes)
    jitter_s: float = 0.002  # messages take up to so much longer; 0 where only the points decide

    constants: Mapping[str, object] = field(default_factory=dict)  # of product modules, by their full names
    probes: bool = True  # further records come when all is over

    @property
    def target_topic(self) -> str:
        return f"east.{self.topic}"


def settings_of(options: Options) -> SourceSettings:
    """The settings of the flow."""
    source = client("east", range(1, options.source_brokers + 1))
    target = client("west", range(1, options.target_brokers + 1))
    return SourceSettings(
        name="model",
        flow="model",
        source_alias="east",
        target_alias="west",
        policy=PolicySettings(),
        on_source_loss=options.on_loss,
        read_committed=options.read_committed,
        flush_interval_s=options.flush_interval_s,
        bytes_per_second=options.bytes_per_second,
        offsets=OffsetStorageSettings(
            topic="mm2-offsets.east.internal",
            partitions=1,
            replication_factor=1,
            client=target,
            store=OffsetStore.KAFKA,
        ),
        source_consumer=source,
        source_admin=source,
        target_producer=target,
        target_admin=target,
    )
