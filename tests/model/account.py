"""A readable account of a run: what arrived where, what the product logged, what was done to the world."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.fetch import read_fetched
from mirrorflow_core.wire.records import decode
from tests.model.clock import START_S, Clock
from tests.model.wire import FLEXIBLE_FETCH, read_fetch, read_produce

if TYPE_CHECKING:
    from tests.model.copier import Copier
    from tests.model.network import Message

_QUIET = {"Metadata", "FindCoordinator", "DescribeConfigs"}
LABELS_SHOWN = 3


class Trace:
    """Lines, in the order in which things happened."""

    def __init__(self, clock: Clock) -> None:
        self.lines: list[str] = []
        self._clock = clock

    def line(self, who: str, text: str) -> None:
        self.lines.append(f"{self._clock.now - START_S:10.4f}  {who:10}  {text}")

    def message(self, message: "Message") -> None:
        """*message* arrives: at the broker, or back."""
        if message.api in _QUIET:
            return
        text = _described(message)
        if text:
            broker = f"{message.link.cluster.alias}-{message.link.node_id}"
            way = f"-> {broker}" if message.is_request else f"<- {broker}"
            self.line(message.link.process.name, f"{way} {message.api} {text}")

    @contextlib.contextmanager
    def of_product(self, running: "Callable[[], Copier | None]") -> Iterator[None]:
        """Take up what the product logs inside the block."""
        trace = self

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                copier = running()
                trace.line("?" if copier is None else copier.name, f"log: {record.getMessage()}")

        handler, logger = Handler(), logging.getLogger("mirrorflow")
        logger.addHandler(handler)
        propagates, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagates


def _described(message: "Message") -> str:
    payload = message.payload
    if message.api == "Produce":
        return _produce(payload) if message.is_request else _produced(payload)
    if message.api == "Fetch":
        return _fetch(message.version, payload) if message.is_request else _fetched(message.version, payload)
    if message.is_request:
        return str(payload) if payload is not None else ""
    return _plain(payload)


def _plain(value: Any) -> str:
    """A response without the names of its classes."""
    if isinstance(value, list):
        return "[" + ", ".join(_plain(one) for one in value) + "]"
    if hasattr(value, "__dict__"):
        shown = {name: one for name, one in vars(value).items() if one not in (None, "", [])}
        return "{" + " ".join(f"{name}={_plain(one)}" for name, one in shown.items()) + "}"
    return str(value)


def batches_in(data: bytes) -> str:
    """The headers in *data*, with the first and last labels."""
    found = []
    for batch in split(bytearray(data)):
        if batch.is_control:
            found.append(f"@{batch.base_offset} marker of {batch.producer_id}/{batch.producer_epoch}")
            continue
        values = [bytes(record.value or b"").decode(errors="replace").rstrip(".") for record in decode(batch)]
        if len(values) > LABELS_SHOWN:
            values = [values[0], "..", values[-1]]
        kind = "txn " if batch.is_transactional else ""
        last = batch.base_sequence + batch.last_offset_delta
        who = f"{batch.producer_id}/{batch.producer_epoch} {kind}{batch.base_sequence}-{last}"
        found.append(f"@{batch.base_offset} {who} [{' '.join(values)}]"[:200])
    return "; ".join(found)


def _produce(body: bytes) -> str:
    request = read_produce(body)
    return "; ".join(f"{topic}-{number} {batches_in(data)}" for (topic, number), data in request.batches)


def _produced(body: bytes) -> str:
    from mirrorflow_core.wire.produce import read_produced

    answers, _ = read_produced(memoryview(body))
    return "; ".join(
        f"{topic}-{number} " + (f"error {one.error} {one.message}" if one.error else f"@{one.base_offset}")
        for (topic, number), one in answers.items()
    )


def _fetch(version: int, body: bytes) -> str:
    request = read_fetch(version, body)
    return "; ".join(
        f"{_name(version, key)} from {wanted.offset} epoch {wanted.leader_epoch}"
        for key, wanted in request.wanted.items()
    )


def _fetched(version: int, body: bytes) -> str:
    found = read_fetched(version, memoryview(bytearray(body)))
    parts = []
    for one in found.partitions:
        text = (
            f"error {one.error}" if one.error else f"hw {one.high_watermark} {batches_in(bytes(one.records))}"
        )
        text += f" diverging {one.diverging}" if one.diverging else ""
        parts.append(f"{_name(version, one.key)} {text}")
    return "; ".join(parts)


def _name(version: int, key: tuple[bytes, int]) -> str:
    return f"{key[0].hex()[:4] if version > FLEXIBLE_FETCH else key[0].decode()}-{key[1]}"
