"""Every case by its name, in the order in which they run."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.results import Result


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """How much is measured: *repeat* runs of each copier; *quick* is for those who work on the code."""

    repeat: int
    quick: bool

    def of(self, full: int, quick: int) -> int:
        """One of two sizes."""
        return quick if self.quick else full


Case = Callable[[Arena, Extent], Result]
