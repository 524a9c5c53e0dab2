"""Says which requests may be sent again after their response was lost.

The first copy may still be on its way, for as long as a connection or a broker stands still. It then arrives after the second
one, and after everything that was requested since. So a request may be sent again only if a copy that arrives then changes
nothing, is refused, or is made good. After a response that says that a request was not executed (another coordinator,
CONCURRENT_TRANSACTIONS) no copy of it is left: any request may follow.

`Cluster.call` obeys this table. All others are sent once; the reason says what follows instead.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Repetition(NamedTuple):
    """Whether a request type may be sent again after a lost response, and the reason."""

    is_safe: bool
    why: str


_READ: Final = Repetition(is_safe=True, why="it changes nothing")
_OF_CONNECTION: Final = Repetition(
    is_safe=False, why="it belongs to its connection, and the next connection begins anew"
)
_OF_MEMBER: Final = Repetition(
    is_safe=False, why="the member joins again; the coordinator refuses copies of an earlier generation"
)

REPETITIONS: Final[Mapping[str, Repetition]] = {
    # Transactions
    "InitProducerId": Repetition(
        is_safe=True,
        why="a late copy raises the epoch once more; its owner is refused, as by a successor, and initializes the id again",
    ),
    "AddPartitionsToTxn": Repetition(
        is_safe=False,
        why="a late copy begins another transaction after the end of this one; the next initialization aborts it, and with it "
        "what lacks its commit marker in these partitions",
    ),
    "EndTxn": Repetition(
        is_safe=False,
        why="a late copy ends a later transaction of the same epoch, between records and their position; "
        "the id is initialized first, which fences the copy, and the log shows what was decided",
    ),
    "Produce": Repetition(
        is_safe=False,
        why="a late copy can follow newer records; batches with sequence numbers are sent again by their writers, "
        "under the same numbers or after the id is initialized",
    ),
    # Groups
    "OffsetCommit": Repetition(
        is_safe=True,
        why="a late copy is refused by a group with members, and moves an idle one back to an earlier translated offset, "
        "until the next pass reads that and commits again",
    ),
    "AlterShareGroupOffsets": Repetition(
        is_safe=True,
        why="a late copy is refused by a group with members, and moves an idle one back to an earlier translated offset, "
        "until the next pass sets it again",
    ),
    "JoinGroup": _OF_MEMBER,
    "SyncGroup": _OF_MEMBER,
    "Heartbeat": _OF_MEMBER,
    "LeaveGroup": _OF_MEMBER,
    # Topics, settings and ACLs: each names a state, and the next sync corrects what an older copy has changed back
    "CreateTopics": Repetition(is_safe=True, why="a copy is refused if the topic exists"),
    "CreatePartitions": Repetition(
        is_safe=True, why="it names the total, and a topic never gets fewer partitions"
    ),
    "IncrementalAlterConfigs": Repetition(
        is_safe=True, why="it names values; the next sync compares them and sets newer ones again"
    ),
    "CreateAcls": Repetition(
        is_safe=True,
        why="an ACL exists once; the first copy can arrive after its removal whether it is repeated or not, if a broker "
        "stands still for longer than the interval of the sync",
    ),
    "DeleteAcls": Repetition(is_safe=True, why="it names the ACLs; the next sync creates one that is back"),
    "DeleteRecords": Repetition(is_safe=True, why="it names an offset, and the log start never goes back"),
    # Reads
    "Metadata": _READ,
    "FindCoordinator": _READ,
    "ListOffsets": _READ,
    "OffsetForLeaderEpoch": _READ,
    "OffsetFetch": _READ,
    "ListGroups": _READ,
    "DescribeGroups": _READ,
    "DescribeShareGroupOffsets": _READ,
    "DescribeProducers": _READ,
    "ListTransactions": _READ,
    "DescribeLogDirs": _READ,
    "DescribeConfigs": _READ,
    "DescribeAcls": _READ,
    "DescribeCluster": _READ,
    "Fetch": Repetition(is_safe=False, why="it is a step of its fetch session, which is begun anew"),
    # Connections
    "ApiVersions": _OF_CONNECTION,
    "SaslHandshake": _OF_CONNECTION,
    "SaslAuthenticate": _OF_CONNECTION,
}


def may_repeat(api: str) -> bool:
    """Returns whether a request of type *api* may be sent again after a lost response; False for an unknown type."""
    return api in REPETITIONS and REPETITIONS[api].is_safe
