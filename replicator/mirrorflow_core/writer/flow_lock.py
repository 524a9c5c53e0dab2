"""The flow's lock, and how transactional ids are taken under it.

The lock is a transactional id. The process that initialized it last owns the flow, and an empty transaction shows whether
that is still so.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.wire.error_codes import UNKNOWN_SERVER_ERROR
from mirrorflow_core.writer.broker_requests import (
    NO_RESPONSE,
    Busy,
    InitProducerId,
    Pause,
    Producer,
    ReadClaims,
    Refused,
    Steps,
    Transaction,
    ask,
)
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.transaction_log import DecidedRecords, decided_records

RETRY_MS: Final = 50
SPARE_AFTER_MS: Final = 5_000  # a new leader is usually elected before
_INVALID_TXN_STATE: Final = 48
_UNCLEAR: Final = {NO_RESPONSE, UNKNOWN_SERVER_ERROR}  # they do not show who has the lock
_CHECKS_MAX: Final = 100  # a check takes some 20 ms, and each task of a group makes three when it starts
_UNCLEAR_MAX: Final = (
    2  # checks; a broken connection costs one response, and each wait for a coordinator is long
)
# Producer ids are unique within one cluster only. A client that moves here from another cluster with the same id
# has a low epoch, so it is refused. If our epoch were as low, it could write our next sequence number.
FIRST_EPOCH: Final = 16
# Kafka's last one. The next initialization gives another producer id, whose epochs do not fence this one.
LAST_EPOCH: Final = 32_766


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another process has taken the lock: stop writing, and come back only as a newcomer."""


def holds_lock(lock: Producer) -> Steps[bool]:
    """Returns whether no other process has taken the lock since; no clear response, twice, counts as no.

    What is read from the claims and offsets topics afterwards is not older than this check. The processes of a group
    check one lock: a transaction that another of them has ended meanwhile is repeated. So the lock's id need not be
    initialized after a lost response: a late EndTxn is as one of another process.
    """
    unclear = 0
    for _ in range(_CHECKS_MAX):
        response = yield from ask(Transaction(lock, is_barrier=True))
        if not isinstance(response, Refused):
            return True
        unclear += response.error_code in _UNCLEAR
        if response.error_code not in {_INVALID_TXN_STATE, *_UNCLEAR} or unclear == _UNCLEAR_MAX:
            return False
        yield from ask(Pause(RETRY_MS))
    return False


def take_ids(
    lock: Producer, names: Iterable[str], spares: Mapping[str, str] = MappingProxyType({})
) -> Steps[dict[str, Producer] | Refused]:
    """Initializes ids as the flow's owner, with *spares* as in `initialize`.

    The lock is checked afterwards: a process that slept before this would otherwise raise the ids of the flow's new
    owner and continue under them.
    """
    producers = yield from initialize(names, spares)
    if isinstance(producers, Refused) or (yield from holds_lock(lock)):
        return producers
    return Refused()


def initialize(
    names: Iterable[str], spares: Mapping[str, str] = MappingProxyType({})
) -> Steps[dict[str, Producer] | Refused]:
    """Initializes all ids; waits while the markers of their last transactions are not written.

    Nothing of the flow may continue before: the owner of an id that is not initialized is not fenced, and can still
    write to any partition. Only an owner that has decided its own last transaction need not wait: an id in *spares*
    that takes longer than SPARE_AFTER_MS is replaced by its spare, under both names. Brokers before 4.0 keep an id busy
    as long as a partition of its last transaction has no leader.
    """
    producers: dict[str, Producer] = {}
    missing = list(dict.fromkeys(names))
    waited_ms = 0
    while missing:
        responses = yield tuple(InitProducerId(name) for name in missing)
        is_busy = False
        for name, response in zip(missing, responses, strict=True):
            match response:
                case Producer(epoch=epoch) if epoch >= FIRST_EPOCH:
                    producers |= {name: response} | {
                        busy: response for busy, spare in spares.items() if spare == name
                    }
                case Busy():
                    is_busy = True
                case Refused():
                    return response
        missing = [name for name in missing if name not in producers]
        if is_busy:
            yield from ask(Pause(RETRY_MS))
            waited_ms += RETRY_MS
            if waited_ms >= SPARE_AFTER_MS:
                missing = [spares.get(name, name) for name in missing]
    return producers


def read_claims(barrier: Producer | None = None) -> Steps[DecidedRecords[Claim]]:
    """Reads all claims."""
    return decided_records((yield from ask(ReadClaims(barrier))), Claim)
