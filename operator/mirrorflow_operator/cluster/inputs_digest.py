"""Records the inputs of a pass, so that a pass with unchanged inputs can be skipped. Pure.

While a pass waits for the responses to its writes, others change objects. The digest includes the pass's own
writes. It leaves out what others changed meanwhile, although the view shows it by then: such a change would
otherwise count as handled and never be corrected.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mirrorflow_operator.cluster.observed import ChildSeen
from mirrorflow_operator.cluster.view import Id


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsDigest:
    """The inputs of one pass: *facts* of the flow, its jobs and pods; a digest of each labelled object."""

    facts: tuple[object, ...]
    children: dict[Id, tuple[object, ...]]

    @classmethod
    def of(cls, facts: tuple[object, ...], children: Iterable[ChildSeen]) -> "InputsDigest":
        """Returns the digest of the current view."""
        return cls(facts=facts, children={child.id: _of(child) for child in children})

    def with_written(self, made: Iterable[ChildSeen]) -> "InputsDigest":
        """Returns a copy updated with the results of the pass's own writes."""
        return replace(self, children=self.children | {child.id: _of(child) for child in made})


def _of(child: ChildSeen) -> tuple[object, ...]:
    return child.digest, child.owner_uid, child.deleting
