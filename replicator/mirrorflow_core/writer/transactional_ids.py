"""Names the transactional ids of a flow: its lock, three for each task, and those of Spark jobs; and those of a pair of flows.

The names belong to the flow, not to a process: the transaction coordinator decides which process has the newest
epoch of an id and refuses all others. A task writes transactions and plain batches with different ids,
because a broker refuses one that writes both to one partition (KIP-890); the third is a spare for transactions.
"""

from typing import NamedTuple

from mirrorflow_core.light_dataclasses import dataclass

NAMESPACE = "mirrorflow:"
TAIL_WRITERS = f"{NAMESPACE}diverged:"  # with an id for each switchover and choice


def switchover_lock(pair: str) -> str:
    """Returns the id whose holder carries out the switchovers of *pair*."""
    return f"{NAMESPACE}switchover:{pair}"


class WriterIds(NamedTuple):
    """The two transactional ids under which one task writes."""

    transactional: str  # writes transactions
    plain: str  # writes idempotent batches outside of transactions

    @property
    def spare(self) -> str:
        """What writes transactions while the last one of `transactional` cannot end."""
        return self.transactional + "-spare"


@dataclass(frozen=True, slots=True)
class TransactionalIds:
    """The ids of a flow that reads from *source_alias*."""

    source_alias: str

    @property
    def prefix(self) -> str:
        """The prefix for an ACL that covers all ids."""
        return f"{NAMESPACE}{self.source_alias}:"

    @property
    def lock(self) -> str:
        """The id that owns the flow; it writes only claims."""
        return self.prefix + "lock"

    def task(self, number: int) -> WriterIds:
        """Returns the ids of task *number*."""
        name = f"{self.prefix}task-{number}"
        return WriterIds(name, name + "-plain")

    def seed(self, run: str, chain: int) -> WriterIds:
        """Returns the ids of one chain of tasks of a Spark seed."""
        name = f"{self.prefix}seed-{run}-{chain}"
        return WriterIds(name, name + "-plain")
