"""The operations that a flow needs on each kind of resource: `acls` prints them, `check` asks for them.

Reading the offset of a group needs DESCRIBE on group and topic, committing one READ on both. DescribeProducers, by which a
flow finds what it wrote, needs READ on the copies.
"""

from dataclasses import dataclass

from mirrorflow_core.topics.topic_acls import Operation

READ, WRITE, CREATE, ALTER = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.ALTER
DESCRIBE = Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


@dataclass(frozen=True, slots=True)
class Access:
    """The operations on one kind of resource. Without one that is only `useful`, a connector runs and warns."""

    needed: tuple[Operation, ...]
    useful: tuple[Operation, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """All of them, as kafka-acls spells them."""
        return tuple(operation.word for operation in (*self.needed, *self.useful))

    @property
    def existing(self) -> tuple[Operation, ...]:
        """What is needed on a resource that exists."""
        return tuple(operation for operation in self.needed if operation is not CREATE)


# Topics of the source, and their copies as the source connector writes them.
SOURCE_TOPIC = Access((READ, DESCRIBE, DESCRIBE_CONFIGS))


def copied_topic(*, reads_configs: bool, alters_configs: bool) -> Access:
    """Returns what the source connector needs on a copy."""
    configs = (DESCRIBE_CONFIGS,) * reads_configs + (ALTER_CONFIGS,) * alters_configs
    return Access((CREATE, WRITE, READ, DESCRIBE, ALTER, *configs))


# Internal topics: stored offsets and what nodes share; logs that their writer reads back; offset syncs; those that
# another connector writes; heartbeats.
STORE = Access((CREATE, WRITE, READ, DESCRIBE, DESCRIBE_CONFIGS))
LOG = Access((CREATE, WRITE, READ, DESCRIBE), useful=(DESCRIBE_CONFIGS,))
WRITTEN_SYNCS = Access((CREATE, WRITE, DESCRIBE), useful=(DESCRIBE_CONFIGS,))
READ_LOG = Access((READ, DESCRIBE))
HEARTBEATS = Access((CREATE, WRITE, DESCRIBE))
# Groups and the topics of their offsets: read on the source, moved on the target.
GROUP_READ = Access((DESCRIBE,))
GROUP_MOVED = Access((READ, DESCRIBE))
# The group by which nodes share work.
GROUP_OF_NODES = Access((READ, DESCRIBE))
TRANSACTIONAL_ID = Access((WRITE, DESCRIBE))
# The cluster itself.
ACLS_READ = Access((DESCRIBE,))
ACLS_WRITTEN = Access((DESCRIBE, ALTER))
