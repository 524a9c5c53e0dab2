"""One planned object -> at most one write: nothing where the cluster has it, nothing over what is somebody else's.

Each write names the object it was decided for (uid and resourceVersion), so of two operators with different news the one with
the older news is refused. An object that the operator makes for the first time is looked for by name before.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_operator.api.spec import API_VERSION, KIND
from mirrorflow_operator.assess.admission import Resource
from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.cluster.kinds import kind_of
from mirrorflow_operator.cluster.observed import CONTENT_HASH, Child, child_seen, owner_uid
from mirrorflow_operator.cluster.view import Id, View
from mirrorflow_operator.errors import NotOursError
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan.differing import holds
from mirrorflow_operator.plan.objects import Object, content_hash

SETTLED_MAX: Final = 10_000  # what is forgotten costs one apply that changes nothing
WRITES: Final = "api_writes_total"
WRITES_ABOUT: Final = "Writes to the API server that succeeded, by verb and kind."


@dataclass(slots=True, kw_only=True)
class Applier:
    """Keeps what the API server makes of what was applied, where this is not what was planned (a webhook's work)."""

    client: Client
    view: View
    metrics: Metrics
    _settled: dict[Id, tuple[str, str]] = field(default_factory=dict)

    async def apply(self, resource: Resource, planned: Object, live: Child | None) -> Child | None:
        """The object as it was written; None where it was there as planned. Raises NotOursError, ClusterError."""
        wanted = owned(planned, resource)
        if live is not None and self._is_there(wanted, live):
            return None
        kind = kind_of(planned)
        metadata = wanted["metadata"]
        if live is None:
            live = await self._found(wanted)
        if live is not None:
            metadata["uid"], metadata["resourceVersion"] = live.uid, live.resource_version
        # A first apply takes nothing from another writer: somebody may have made the object since it was looked for.
        answer = await self.client.apply(kind, wanted, force=live is not None)
        self.metrics.count(WRITES, WRITES_ABOUT, verb="apply", kind=kind.plural)
        self.view.put(kind, answer)
        made = child_seen(kind, answer)
        if holds(made.content(), _content(wanted)):
            self._settled.pop(made.id, None)
        else:
            if len(self._settled) >= SETTLED_MAX:
                self._settled.clear()
            self._settled[made.id] = (made.content_hash, made.digest)
        return made

    async def prune(self, child: Child) -> None:
        """*child* is in no plan any more."""
        await self.client.delete(child.kind, child.namespace, child.name, uid=child.uid)
        self.metrics.count(WRITES, WRITES_ABOUT, verb="delete", kind=child.kind.plural)
        self._settled.pop(child.id, None)

    def _is_there(self, wanted: Object, live: Child) -> bool:
        if live.content_hash != wanted["metadata"]["annotations"][CONTENT_HASH]:
            return False
        if self._settled.get(live.id) == (live.content_hash, live.digest):
            return True
        return holds(live.content(), _content(wanted))

    async def _found(self, wanted: Object) -> Child | None:
        """The object of that name, which the watches did not show: none, or one whose label was taken away."""
        kind, metadata = kind_of(wanted), wanted["metadata"]
        selector = f"metadata.name={metadata['name']}"
        async for _, bodies in self.client.chunks(kind, metadata["namespace"], fields=selector):
            for body in bodies:
                if not owner_uid(body):
                    raise NotOursError(kind.name, metadata["namespace"], metadata["name"])
                return child_seen(kind, body)
        return None


def owned(planned: Object, resource: Resource) -> Object:
    """*planned* with its owner, and with the hash by which a later operator sees what it was made by."""
    metadata = planned["metadata"]
    return {
        **planned,
        "metadata": {
            **metadata,
            "annotations": {**metadata.get("annotations", {}), CONTENT_HASH: content_hash(planned)},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": resource.name,
                    "uid": resource.uid,
                    "controller": True,
                    # True would need a right on the finalizers of MirrorFlows, and holds a deletion up.
                    "blockOwnerDeletion": False,
                }
            ],
        },
    }


def _content(wanted: Object) -> dict[str, Any]:
    """As `Child.content` has it."""
    metadata = wanted["metadata"]
    return {
        **{name: part for name, part in wanted.items() if name not in {"apiVersion", "kind", "metadata"}},
        "metadata": {name: metadata[name] for name in ("labels", "annotations", "ownerReferences")},
    }
