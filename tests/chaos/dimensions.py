"""The dimensions of a trial's flow. They are drawn from its seed, or requested by the caller."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from tests.harness.kafka.installation import OLD_VERSION, VERSION

# The age of records in days. None stands for timestamp 1, the oldest possible, because librdkafka replaces timestamp 0
# with the current time.
AGES_DAYS: Mapping[str, Sequence[int | None]] = {
    "fresh": (0,),
    "old": (40, None),
    "mixed": (0, 0, 40),  # the codec changes with each record
    "changing": (0, 40, 40, None),  # the codec changes with each burst
}
CHOICES: Mapping[str, Sequence[str]] = {
    "age": tuple(AGES_DAYS),
    # How long the target keeps producer ids. With a minute the flow writes all records inside transactions.
    "expiry": ("day", "day", "minute"),
    "isolation": ("read_uncommitted", "read_committed"),
    "tasks": ("1", "2", "3"),
    "copiers": ("1", "2", "3"),
    "codec": ("producer", "uncompressed", "gzip", "zstd"),  # compression.type of the target's topics
    "times": ("CreateTime", "CreateTime", "LogAppendTime"),  # message.timestamp.type of the target's topics
    "brokers": (VERSION, VERSION, OLD_VERSION),
    "cleanup": ("delete", "delete", "compact"),  # cleanup.policy of the topics on both sides
    # Whether the flow may use transactional ids. Without them, it copies at least once.
    "transactions": ("allowed", "allowed", "denied"),
    # Whether all copiers are sometimes restarted with a different number of tasks and a different isolation level.
    "settings": ("fixed", "rolling"),
    # Whether the source loses records in unclean elections, and the flow's policy for such a loss.
    "truncation": ("never", "never", "alert", "fail", "restart"),
    # The flow's internal topics. With a single replica, they have no leader while that broker is unavailable. Altered
    # topics are deleted, extended and given a different cleanup.policy while the flow copies.
    "internals": ("replicated", "single", "altered"),
    # Whether the wall clocks of copiers step forward and back by up to an hour.
    "clocks": ("true", "stepping"),
    # Whether settings of the target topics that decide how records are written change.
    "copies": ("fixed", "changing"),
    # Whether a cluster sometimes limits the rates of its clients.
    "quotas": ("none", "passing"),
    # Whether the flow sometimes lacks the permission to write one of the target topics.
    "rights": ("fixed", "changing"),
    # Whether some records have 200 KiB that compress to a hundred bytes.
    "padding": ("none", "large"),
    # Whether connections to the target sometimes break and requests in flight arrive after their retries.
    "network": ("direct", "late"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """The value of each dimension, one of its `CHOICES`."""

    age: str
    expiry: str
    isolation: str
    tasks: str
    copiers: str
    codec: str
    times: str
    brokers: str
    cleanup: str
    transactions: str
    settings: str
    truncation: str
    internals: str
    clocks: str
    copies: str
    quotas: str
    rights: str
    padding: str
    network: str

    @property
    def has_times(self) -> bool:
        """Returns whether copied records keep the timestamps of the source."""
        return (self.times, self.copies) == ("CreateTime", "fixed")

    @property
    def has_authorizer(self) -> bool:
        """Returns whether the target has an authorizer and authenticates clients."""
        return self.transactions == "denied" or self.rights == "changing"

    @property
    def has_forgotten_records(self) -> bool:
        """Returns whether leaders on the target expire the producers of some records at once."""
        return self.age != "fresh" or self.expiry == "minute"

    @property
    def has_transactions(self) -> bool:
        """Returns whether the flow writes some records inside transactions, which only read_committed readers read
        once.
        """
        has_gaps = self.has_source_transactions or self.cleanup == "compact"
        return not self.has_repeats and (self.has_forgotten_records or has_gaps)

    @property
    def has_repeats(self) -> bool:
        """Returns whether records may be copied again after a kill."""
        return self.transactions == "denied"

    @property
    def is_truncated(self) -> bool:
        """Returns whether the source loses records."""
        return self.truncation != "never"

    @property
    def has_source_transactions(self) -> bool:
        """Returns whether producers write transactions to the source. A truncation could remove a marker."""
        return not self.is_truncated

    @property
    def has_aborts(self) -> bool:
        """Returns whether transactions on the source are aborted.

        Compaction also removes aborted records that a read_uncommitted flow may have copied before.
        """
        return self.cleanup == "delete" or (self.isolation, self.settings) == ("read_committed", "fixed")

    def __str__(self) -> str:
        return " ".join(f"{dimension.name}={getattr(self, dimension.name)}" for dimension in fields(self))

    @property
    def arguments(self) -> str:
        """Returns the command-line arguments that request these dimensions."""
        return " ".join(
            f"--set {dimension.name}={getattr(self, dimension.name)}" for dimension in fields(self)
        )


def draw(seed: int, requested: Mapping[str, str]) -> Dimensions:
    """Draws the dimensions of *seed*, except for those *requested*.

    Raises ValueError for an unknown choice and for a combination without a delivery guarantee.
    """
    for name, value in requested.items():
        if value not in CHOICES.get(name, ()):
            known = ", ".join(
                f"{dimension}={'|'.join(dict.fromkeys(values))}" for dimension, values in CHOICES.items()
            )
            raise ValueError(f"{name}={value} is none of {known}")
    rng = random.Random(seed)
    drawn = {name: rng.choice(values) for name, values in CHOICES.items()} | dict(requested)
    changed = _guaranteed(drawn)
    if broken := [f"{name}={requested[name]}" for name in requested if changed[name] != requested[name]]:
        raise ValueError(f"nothing is promised for {', '.join(broken)} together with the other choices")
    return Dimensions(**changed)


def _guaranteed(drawn: Mapping[str, str]) -> dict[str, str]:
    """Returns *drawn*, changed to a combination with a guarantee in docs/exactly-once.md."""
    changed = dict(drawn)
    dimensions = Dimensions(**drawn)
    if dimensions.has_repeats:
        # Without a lock, a slow copier writes earlier values of a key after later ones.
        changed |= {"copiers": "1", "cleanup": "delete"}
    if dimensions.is_truncated:
        # After a loss the copy has newer values of some keys, so compacted logs cannot be compared.
        changed["cleanup"] = "delete"
    if dimensions.has_authorizer:
        changed["network"] = "direct"  # the listener of the proxy has no authentication
    return changed
