"""Decides how many bytes may be sent before responses must arrive, from how long earlier bytes waited for theirs."""

import math
from dataclasses import dataclass, replace
from typing import Final

# The first window, and the smallest: where each response takes long whatever its size, less would only be slower. A link of
# 100 kB/s carries it in less than 3 s.
LEAST_BYTES: Final = 256 << 10
# The rate before any is measured: a batch of 1 MiB then takes a minute, as long as a transaction may.
FIRST_BYTES_PER_S: Final = 16 << 10
# A broker that freezes is detected after this time at most, and RESPONSE_TIMEOUT_S. A batch of 8 MiB takes 512 s at FIRST_BYTES_PER_S.
TRANSIT_MAX_S: Final = 600.0
_LEAST_S: Final = 1e-6  # clocks are coarser than the fastest responses


@dataclass(frozen=True, slots=True)
class SendWindow:
    """*size_bytes* that get their responses within *within_s* at the rate measured so far; it grows to *growth* times what was sent."""

    within_s: float
    growth: float = math.inf
    size_bytes: int = LEAST_BYTES
    bytes_per_s: float = FIRST_BYTES_PER_S

    def after(self, sent_bytes: int, took_s: float) -> "SendWindow":
        """Returns the window after *sent_bytes*, sent together, all got their responses *took_s* later."""
        bytes_per_s = sent_bytes / max(took_s, _LEAST_S)
        carried_bytes = int(bytes_per_s * self.within_s)
        if took_s > self.within_s:
            size_bytes = min(self.size_bytes, max(carried_bytes, LEAST_BYTES))
            if sent_bytes < LEAST_BYTES:
                # Few bytes are late where the broker was slow for a moment: they prove no slower link than is known.
                bytes_per_s = max(bytes_per_s, min(self.bytes_per_s, FIRST_BYTES_PER_S))
            return replace(self, size_bytes=size_bytes, bytes_per_s=bytes_per_s)
        size_bytes = max(self.size_bytes, int(min(carried_bytes, self.growth * sent_bytes)))
        if size_bytes == self.size_bytes and bytes_per_s <= self.bytes_per_s:
            return self
        return replace(self, size_bytes=size_bytes, bytes_per_s=max(bytes_per_s, self.bytes_per_s))

    def transit_s(self, size_bytes: int) -> float:
        """Returns how long *size_bytes* are on their way at the measured rate, at most TRANSIT_MAX_S."""
        transit_s = size_bytes / self.bytes_per_s
        return transit_s if transit_s < TRANSIT_MAX_S else TRANSIT_MAX_S  # noqa: FURB136 the hot path
