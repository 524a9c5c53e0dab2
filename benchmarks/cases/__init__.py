"""The extent of a case, and the type of all cases."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.arena import Arena
from benchmarks.results import Result


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """The extent of a run: *repeat* runs of each copier; *quick* is for development."""

    repeat: int
    quick: bool

    def of(self, full: int, quick: int) -> int:
        """Returns one of the two sizes."""
        return quick if self.quick else full


Case = Callable[[Arena, Extent], Result]
