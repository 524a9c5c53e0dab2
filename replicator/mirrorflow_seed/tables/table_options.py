"""Reads the options of `spark.read.format("mirrorflow")`. They have the names of Spark's own Kafka source.

A value may be a reference to a secret, `${env:NAME}` or `${file:/path:key}`: driver and executors resolve it where they
connect, so no secret passes through Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mirrorflow_core.java.patterns import compile_pattern
from mirrorflow_core.settings import ClientSettings
from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.settings import flag_of, whole_of
from mirrorflow_seed.topic_range_reader import SourceClient

CLIENT_PREFIX: Final = "kafka."
PROVIDERS_KEY: Final = "config.providers"
# Providers that need no settings, so that references work without any.
PROVIDERS: Final[Mapping[str, str]] = {
    "config.providers": "env,file,dir",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    "config.providers.dir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
}
# A task reads this many offsets in some seconds; more would leave cores idle at the end.
OFFSETS_PER_TASK: Final = 1_000_000
OPTIONS: Final = frozenset(
    {
        "subscribe",
        "subscribepattern",
        "startingoffsets",
        "startingtimestamp",
        "failondataloss",
        "maxoffsetspertrigger",
        "maxrecordsperpartition",
        "timestampsinorder",
    }
)


class StartingOffsets(Enum):
    """Where a query begins that has no checkpoint; each partition that appears later is read from its beginning."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The options of one query. Comments give their names."""

    client: SourceClient
    topics: frozenset[str]  # subscribe
    pattern: str  # subscribePattern; "" without
    start: StartingOffsets  # startingOffsets
    start_ms: int | None  # startingTimestamp
    fails_on_loss: bool  # failOnDataLoss
    offsets_per_trigger: int | None  # maxOffsetsPerTrigger
    offsets_per_task: int  # maxRecordsPerPartition
    # timestampsInOrder: in each partition, no record is older than the one before it
    timestamps_in_order: bool

    def selects(self, topic: str) -> bool:
        """Whether the query reads the topic."""
        if self.topics:
            return topic in self.topics
        return compile_pattern("subscribePattern", self.pattern).matches(topic)


def read_options(given: Mapping[str, str], *, is_stream: bool) -> TableOptions:
    """Returns the options in *given*, whatever the case of their names. Raises JobSettingError."""
    options = {key.lower(): value for key, value in given.items()}
    for key in options:
        if key not in OPTIONS and not key.startswith((CLIENT_PREFIX, PROVIDERS_KEY)):
            raise JobSettingError(
                key=key, problem="the format mirrorflow has no such option", action="see docs/spark-table.md"
            )
    properties = {
        key[len(CLIENT_PREFIX) :]: value for key, value in options.items() if key.startswith(CLIENT_PREFIX)
    }
    if not properties.get("bootstrap.servers"):
        raise JobSettingError(
            key="kafka.bootstrap.servers",
            problem="it is not set",
            action="write host:port, or several with commas",
        )
    topics = frozenset(name.strip() for name in options.get("subscribe", "").split(",") if name.strip())
    pattern = options.get("subscribepattern", "")
    if bool(topics) == bool(pattern):
        raise JobSettingError(
            key="subscribe",
            problem="exactly one of subscribe and subscribePattern must be set",
            action="set one",
        )
    start = options.get("startingoffsets", "latest" if is_stream else "earliest").lower()
    if start not in {known.value for known in StartingOffsets}:
        raise JobSettingError(
            key="startingOffsets",
            problem=f"{start!r} is not a valid value",
            action="write earliest or latest",
        )
    return TableOptions(
        client=SourceClient(
            settings=ClientSettings(alias="source", client_id="mirrorflow-table", properties=properties),
            providers={**PROVIDERS, **_providers(options)},
            read_committed=properties.get("isolation.level", "") == "read_committed",
        ),
        topics=topics,
        pattern=pattern,
        start=StartingOffsets(start),
        start_ms=_whole(options, "startingTimestamp"),
        fails_on_loss=_flag(options, "failOnDataLoss", default=True),
        offsets_per_trigger=_whole(options, "maxOffsetsPerTrigger"),
        offsets_per_task=_whole(options, "maxRecordsPerPartition") or OFFSETS_PER_TASK,
        timestamps_in_order=_flag(options, "timestampsInOrder", default=False),
    )


def _providers(options: Mapping[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in options.items() if key.startswith(PROVIDERS_KEY)}


def _whole(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    return None if text is None else whole_of({name: text}, name, 1)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    return default if text is None else flag_of({name: text}, name)
