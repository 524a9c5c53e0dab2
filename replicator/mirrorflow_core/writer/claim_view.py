"""Decides what a process that does not own a flow knows of its newest claim, also where the claims cannot be read.

Such a process only obeys: it stops where a switchover has ended the flow, or waits until one has started it. There is one rule:

- What was read stays known until a newer claim is read. A topic that was deleted or hidden since does not end what it said.
- A topic that does not exist, or that the user may not see, says that the flow was never owned, if no claim was read before.
- A topic without a leader says nothing: its newest claim may be an end of the flow, so nothing may be decided, unless an end is known.
"""

from dataclasses import dataclass

from mirrorflow_core.writer.claim import Claim


@dataclass(frozen=True, slots=True)
class ClaimView:
    """The newest *claim* that was read; None if the flow was never owned. *unread*: why the last read gave nothing, or empty."""

    claim: Claim | None = None
    unread: str = ""

    @property
    def ended_by(self) -> str | None:
        """The id of the switchover that has ended the flow; None if it runs, as far as is known."""
        return (self.claim.ended or None) if self.claim is not None else None

    def after(self, newest: Claim | None, *, unread: str = "") -> "ClaimView":
        """Returns the view after one more read, which had *newest* as its result, or *unread* as the reason for none."""
        return ClaimView(self.claim if newest is None else newest, unread)
