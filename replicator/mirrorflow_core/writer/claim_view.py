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
    """The newest *claim* that was read; None if the flow was never owned. *unread*: why the last read gave nothing; None: it succeeded."""

    claim: Claim | None = None
    unread: str | None = None

    @property
    def ended_by(self) -> str | None:
        """The id of the switchover that has ended the flow; None if it runs, as far as is known."""
        return None if self.claim is None else self.claim.ended

    def after_read(self, newest: Claim | None, *, missing: str) -> "ClaimView":
        """Returns the view after a read that had *newest* as its result; None: no claim, or no topic.

        *missing* says so where a claim was read before: then the topic was deleted or hidden since.
        """
        if newest is not None:
            return ClaimView(newest)
        return ClaimView() if self.claim is None else ClaimView(self.claim, missing)

    def after_refusal(self, unread: str) -> "ClaimView":
        """Returns the view after a read that the user may not do; *unread* says so."""
        return ClaimView(self.claim, unread)

    def after_no_leader(self, unread: str) -> "ClaimView | None":
        """Returns the view after a read of a topic without a leader; None: nothing may be decided, as no end is known."""
        return None if self.ended_by is None else ClaimView(self.claim, unread)
