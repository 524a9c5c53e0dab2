"""What a pass over a flow has gone by: where nothing of it has changed since nothing was missing, the next has nothing to do. Pure.

A pass waits for the answers to its writes, and meanwhile others go on changing things. What it has written itself belongs to
what it has gone by; what others have changed does not, though the view shows it by then: it would be taken for looked at and
never be mended.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mirrorflow_operator.cluster.observed import Child
from mirrorflow_operator.cluster.view import Id


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """*facts* of the flow, its jobs and its pods; the objects that bear its label."""

    facts: tuple[object, ...]
    children: dict[Id, tuple[object, ...]]

    @classmethod
    def of(cls, facts: tuple[object, ...], children: Iterable[Child]) -> "LookedAt":
        """As the view has it now."""
        return cls(facts=facts, children={child.id: _of(child) for child in children})

    def with_written(self, made: Iterable[Child]) -> "LookedAt":
        """With objects as the answers to the pass's own writes have them."""
        return replace(self, children=self.children | {child.id: _of(child) for child in made})


def _of(child: Child) -> tuple[object, ...]:
    return child.digest, child.owner_uid, child.deleting
