"""What kind of flow a trial runs: drawn from its seed, or as asked for."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from tests.harness.kafka.installation import OLD_VERSION, VERSION

# How old the records of a burst are, in days; None: as old as can be (librdkafka takes timestamp 0 for "now").
AGES_DAYS: Mapping[str, Sequence[int | None]] = {
    "fresh": (0,),
    "old": (40, None),
    "mixed": (0, 0, 40),  # from record to record
    "changing": (0, 40, 40, None),  # from burst to burst
}
CHOICES: Mapping[str, Sequence[str]] = {
    "age": tuple(AGES_DAYS),
    # How long the target remembers producers: with a minute all records are written inside transactions.
    "expiry": ("day", "day", "minute"),
    "isolation": ("read_uncommitted", "read_committed"),
    "tasks": ("1", "2", "3"),
    "copiers": ("1", "2", "3"),
    "codec": ("producer", "uncompressed", "gzip", "zstd"),  # compression.type of the target's topics
    "times": ("CreateTime", "CreateTime", "LogAppendTime"),  # message.timestamp.type of the target's topics
    "brokers": (VERSION, VERSION, OLD_VERSION),
    "cleanup": ("delete", "delete", "compact"),  # cleanup.policy of the topics on both sides
    # Whether the flow may use its transactional ids; where not, it copies at least once.
    "transactions": ("allowed", "allowed", "denied"),
    # Whether all copiers are now and then restarted with another number of tasks and another isolation level.
    "settings": ("fixed", "rolling"),
    # Whether the source loses tails in unclean elections, and with which policy for losses.
    "truncation": ("never", "never", "alert", "fail", "restart"),
    # The topics of the flow itself: with one replica each they are without a leader whenever its broker is away; altered,
    # they are deleted, grown and given another cleanup.policy while the flow copies.
    "internals": ("replicated", "single", "altered"),
    # Whether the wall clocks of copiers step, back and forth, by up to an hour.
    "clocks": ("true", "stepping"),
    # Whether settings of the copies change that decide how they are written.
    "copies": ("fixed", "changing"),
    # Whether a cluster limits the rates of its clients now and then.
    "quotas": ("none", "passing"),
    # Whether the flow is now and then denied to write one of the copies.
    "rights": ("fixed", "changing"),
    # Whether some records are of 200 KiB that compress to a hundred bytes.
    "padding": ("none", "large"),
    # Whether requests to the target arrive after their repetitions now and then: connections break, and what was on its way
    # comes late.
    "network": ("direct", "late"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """One of `CHOICES` for each."""

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
        """Whether the copies have the timestamps of their source."""
        return (self.times, self.copies) == ("CreateTime", "fixed")

    @property
    def has_authorizer(self) -> bool:
        """Whether the target asks for a password and knows rights."""
        return self.transactions == "denied" or self.rights == "changing"

    @property
    def has_forgotten_records(self) -> bool:
        """Whether leaders on the target forget the producer of some records at once."""
        return self.age != "fresh" or self.expiry == "minute"

    @property
    def has_transactions(self) -> bool:
        """Whether the flow writes some records inside transactions, which only readers of committed records see once."""
        has_gaps = self.has_source_transactions or self.cleanup == "compact"
        return not self.has_repeats and (self.has_forgotten_records or has_gaps)

    @property
    def has_repeats(self) -> bool:
        """Whether records are copied again after a kill."""
        return self.transactions == "denied"

    @property
    def is_truncated(self) -> bool:
        """Whether the source loses records."""
        return self.truncation != "never"

    @property
    def has_source_transactions(self) -> bool:
        """Whether producers write transactions to the source. A lost marker would leave a transaction open for ever."""
        return not self.is_truncated

    @property
    def has_aborts(self) -> bool:
        """Whether transactions on the source are aborted.

        Compaction removes aborted records, also from the sight of readers of uncommitted ones, who may have copied them.
        """
        return self.cleanup == "delete" or (self.isolation, self.settings) == ("read_committed", "fixed")

    def __str__(self) -> str:
        return " ".join(f"{one.name}={getattr(self, one.name)}" for one in fields(self))

    @property
    def arguments(self) -> str:
        """The command line that asks for these."""
        return " ".join(f"--set {one.name}={getattr(self, one.name)}" for one in fields(self))


def draw(seed: int, asked: Mapping[str, str]) -> Dimensions:
    """The dimensions of *seed*, but for those *asked* for.

    Raises ValueError for a choice that does not exist, and for a combination about which nothing is promised.
    """
    for name, value in asked.items():
        if value not in CHOICES.get(name, ()):
            known = ", ".join(f"{one}={'|'.join(dict.fromkeys(values))}" for one, values in CHOICES.items())
            raise ValueError(f"{name}={value} is none of {known}")
    chance = random.Random(seed)
    drawn = {name: chance.choice(values) for name, values in CHOICES.items()} | dict(asked)
    changed = _promised(drawn)
    if broken := [f"{name}={asked[name]}" for name in asked if changed[name] != asked[name]]:
        raise ValueError(f"nothing is promised for {', '.join(broken)} together with the other choices")
    return Dimensions(**changed)


def _promised(drawn: Mapping[str, str]) -> dict[str, str]:
    """*drawn*, with as few changes as make it a combination that docs/exactly-once.md promises something about."""
    changed = dict(drawn)
    one = Dimensions(**drawn)
    if one.has_repeats:
        # Without a lock, a slow copier writes earlier values of a key behind later ones.
        changed |= {"copiers": "1", "cleanup": "delete"}
    if one.is_truncated:
        # What compaction leaves of a log with a lost tail cannot be compared: the copy has newer values of some keys.
        changed["cleanup"] = "delete"
    if one.has_authorizer:
        changed["network"] = "direct"  # the listener behind the proxy knows no users
    return changed
