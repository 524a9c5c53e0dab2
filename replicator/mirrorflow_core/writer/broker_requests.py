"""The requests of the ownership protocol and their responses, and how its generators are run side by side.

The protocol is pure: a generator yields a tuple of requests that do not depend on each other, and is resumed
with the tuple of their responses. The runner sends them, repeats them after retriable errors (leader or
coordinator moved, timeouts of reads), and returns `Refused` for every other error. A response to a transaction
that never came is `Refused(NO_RESPONSE)`. A read about one partition that cannot be answered is `Unavailable`: the
partition waits, and the others continue.

Partitions are named as on the source, also for requests to the target.
"""

from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.position import WriterPosition

NO_RESPONSE: Final = None  # in place of an error code: the response to a request is lost
T = TypeVar("T")
K = TypeVar("K")


class Producer(NamedTuple):
    """A transactional id with the producer id and epoch that the coordinator gave this process."""

    transactional_id: str
    producer_id: int
    epoch: int


class Refused(NamedTuple):
    """The response to a request that a broker did not execute, or whose response is lost.

    A step of the protocol returns it without a code if it has to be repeated by another session.
    """

    error_code: int | None = NO_RESPONSE


class Done(NamedTuple):
    """The response to a transaction that has ended as requested; its markers may still be on their way.

    It does not cover the partitions that were left out because their topic is denied or deleted.
    """

    left_out: Mapping[TopicPartition, MirrorFlowError] = MappingProxyType({})


class Unavailable(NamedTuple):
    """The response to a read about one partition that cannot be answered now."""

    error: MirrorFlowError


class Busy(NamedTuple):
    """The response to `InitProducerId` while markers of the id's last transaction are not yet written (error 51)."""


class InitProducerId(NamedTuple):
    """Take a transactional id: fences all earlier epochs. Response: `Producer`, `Busy` or `Refused`."""

    transactional_id: str


class Transaction(NamedTuple):
    """One whole transaction of *producer*. Response: `Done` or `Refused`; Refused: none of it is committed, or unknown.

    `partitions` are partitions of the target that get the transaction's marker and no record, unless they are in
    `Done.left_out`; with `is_barrier`, so do all partitions of the claims and the offsets topic. Without any of these and without records, the transaction
    is over the claims topic. Both AddPartitionsToTxn and EndTxn must succeed: a former coordinator confirms a
    repeated EndTxn. After a Produce request without a response there is no EndTxn, and the response is Refused. An
    AddPartitionsToTxn or EndTxn without a response is not repeated, and nothing follows it in its epoch: its late copy would
    begin another transaction, or end it. Only the lock's transactions bear that, for the processes of a group share them.
    """

    producer: Producer
    commit: bool = True
    claim: Claim | None = None
    positions: tuple[WriterPosition, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    is_barrier: bool = False


class ReadClaims(NamedTuple):
    """Read the claims topic up to its high watermark. Response: a tuple of `LogBatch`.

    The read includes the marker of the last transaction of *barrier*: a former leader, which was frozen, answers with
    an old high watermark.
    """

    barrier: Producer | None


class ReadPositions(NamedTuple):
    """Read the offsets topic up to its high watermarks, with *barrier* as in `ReadClaims`.

    Response: for each of its partitions a tuple of `LogBatch`.
    """

    barrier: Producer


class ReadEnd(NamedTuple):
    """Read where the log of a target partition ends, as a consumer sees it. Response: `LogEnd`."""

    partition: TopicPartition


class LogEnd(NamedTuple):
    """The log start offset, the last stable offset, the high watermark, and the leader epoch of the last record below."""

    start: int
    stable: int
    end: int
    leader_epoch: int


class ReadBatches(NamedTuple):
    """Read the batches of a target partition with offsets in [start, end). Response: a tuple of `LogBatch`."""

    partition: TopicPartition
    start: int
    end: int


class ReadAborted(NamedTuple):
    """Read which transactions begin before *offset* of a target partition and were aborted there or later.

    Response: their first offsets, by producer id. Those after the last stable offset are not in it.
    """

    partition: TopicPartition
    offset: int


class ReadLastSequence(NamedTuple):
    """Read what a target partition's leader remembers of a producer epoch (DescribeProducers, KIP-664).

    Response: the last sequence number; -1: nothing was written in that epoch; None: unknown.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int


class ReadSourceStart(NamedTuple):
    """Read where a partition without a position starts. Response: `SourceStart`.

    *from_beginning*: at its first record, whatever the configured start is. The loss policy asks so: that start is for
    partitions that were never copied.
    """

    partition: TopicPartition
    from_beginning: bool = False


class SourceStart(NamedTuple):
    """The first source offset to copy, and the leader epoch of the record there; -1: none is there yet, or unknown."""

    offset: int
    leader_epoch: int


class LeaderEpochEnd(NamedTuple):
    """The largest leader epoch of a log that is not above the requested one, and its end; -1: the broker does not know."""

    epoch: int
    end: int


class ReadEpochEnd(NamedTuple):
    """Read where a leader epoch ends (OffsetsForLeaderEpoch, KIP-101). Response: `LeaderEpochEnd`."""

    partition: TopicPartition
    epoch: int
    on_target: bool


class ReadOffsetMap(NamedTuple):
    """Translate a target offset back. Response: the source offset of the record that was there; None if unknown.

    *generation* is that of the newest position. A map of an earlier count does not show where copying continued then.
    """

    partition: TopicPartition
    target_offset: int
    generation: int


class ReportLoss(NamedTuple):
    """Report that *partition* continues at *next_source_offset* although something was lost, before this is stored."""

    partition: TopicPartition
    next_source_offset: int
    why: str


class ReadIdleLimit(NamedTuple):
    """Read when the target's brokers close an idle connection (connections.max.idle.ms). Response: milliseconds."""


class Pause(NamedTuple):
    """Wait, for repeated attempts with jitter. Response: this process's monotonic clock in milliseconds.

    Ages are measured by it: a wall clock can step, and that of another host is another one.
    """

    ms: int


class ReadWallClock(NamedTuple):
    """Read the time for a record that is written, in milliseconds since 1970."""


Request = (
    InitProducerId
    | Transaction
    | ReadClaims
    | ReadPositions
    | ReadEnd
    | ReadBatches
    | ReadAborted
    | ReadLastSequence
    | ReadSourceStart
    | ReadEpochEnd
    | ReadOffsetMap
    | ReportLoss
    | ReadIdleLimit
    | Pause
    | ReadWallClock
)
# A request determines the type of its response; the protocol's functions say which they expect.
Steps = Generator[tuple[Request, ...], tuple[Any, ...], T]


def ask(request: Request) -> Steps[Any]:
    """Sends one request and returns its response."""
    (response,) = yield (request,)
    return response


def gather(running: Mapping[K, Steps[T]]) -> Steps[dict[K, T]]:
    """Runs several generators; the requests that they yield in one round are sent together."""
    results: dict[K, T] = {}
    responses: dict[K, tuple[Any, ...] | None] = dict.fromkeys(running)
    while responses:
        pending: dict[K, tuple[Request, ...]] = {}
        for key, response in responses.items():
            try:
                pending[key] = next(running[key]) if response is None else running[key].send(response)
            except StopIteration as stop:
                results[key] = stop.value
        if not pending:
            break
        flat = yield tuple(request for requests in pending.values() for request in requests)
        begin = 0
        responses = {}
        for key, requests in pending.items():
            responses[key] = flat[begin : begin + len(requests)]
            begin += len(requests)
    return results


def until_unavailable(steps: Steps[T]) -> Steps[T | Unavailable]:
    """Runs *steps*, which are about one partition, and ends them at the first response that is `Unavailable`."""
    try:
        asked = next(steps)
        while True:
            responses = yield asked
            if missing := [response for response in responses if isinstance(response, Unavailable)]:
                steps.close()
                return missing[0]
            asked = steps.send(responses)
    except StopIteration as stop:
        result: T = stop.value
        return result


def each_available(steps: Mapping[K, Steps[T]], left_out: dict[K, MirrorFlowError]) -> Steps[dict[K, T]]:
    """Runs the steps of several partitions side by side; adds to *left_out* those that are unavailable, with the reason."""
    results = yield from gather({key: until_unavailable(its) for key, its in steps.items()})
    available: dict[K, T] = {}
    for key, result in results.items():
        if isinstance(result, Unavailable):
            left_out[key] = result.error
        else:
            available[key] = result
    return available
