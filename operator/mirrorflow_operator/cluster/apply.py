"""Applies and prunes planned objects, with at most one write for each.

An object that is already as planned is not written, and an object without a MirrorFlow owner is not
overwritten. Each write carries the uid and resourceVersion of the object it was decided for, so the API
server refuses the write of an operator whose view is out of date. Before the first apply, the object is read
by name.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from mirrorflow_operator.api.spec import API_VERSION, KIND
from mirrorflow_operator.cluster.client import Client, kind_of
from mirrorflow_operator.cluster.observed import CONTENT_HASH, ChildSeen, child_seen, owner_uid
from mirrorflow_operator.cluster.view import Id, View
from mirrorflow_operator.errors import NameConflictError
from mirrorflow_operator.metrics import Metrics
from mirrorflow_operator.plan.objects import Object, content_hash, holds
from mirrorflow_operator.status.admission import Resource

SETTLED_MAX: Final = 10_000  # a forgotten entry costs one apply that changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenObject:
    """An object that was written, as the API server returned it."""

    child: ChildSeen
    body: Object


@dataclass(slots=True, kw_only=True)
class Applier:
    """Applies and deletes the objects of flows.

    Where the stored object differs from the plan after an apply (a mutating webhook), remembers the stored
    content, so that the next pass does not write it again.
    """

    client: Client
    view: View
    metrics: Metrics
    _settled: dict[Id, tuple[str, str]] = field(default_factory=dict)

    async def apply(self, resource: Resource, planned: Object) -> WrittenObject | None:
        """Returns the object as written, or None if it already was as planned.

        Raises NameConflictError where an object of that name has no MirrorFlow owner, ApiServerError where a request
        fails.
        """
        wanted, kind = owned(planned, resource), kind_of(planned)
        metadata = wanted["metadata"]
        live = self.view.children(resource.key).get((kind.name, metadata["namespace"], metadata["name"]))
        if live is not None and self._is_there(wanted, live):
            return None
        if live is None:
            live = await self._found(wanted)
        if live is not None:
            metadata["uid"], metadata["resourceVersion"] = live.uid, live.resource_version
        # A first apply is not forced: another writer may have created the object since it was read, and its
        # fields must stay.
        answer = await self.client.apply(kind, wanted, force=live is not None)
        self.metrics.api_writes.labels(verb="apply", kind=kind.plural).inc()
        self.view.put(kind, answer)
        made = child_seen(kind, answer)
        if holds(made.content(), _content(wanted)):
            self._settled.pop(made.id, None)
        else:
            if len(self._settled) >= SETTLED_MAX:
                self._settled.clear()
            self._settled[made.id] = (made.content_hash, made.digest)
        return WrittenObject(child=made, body=answer)

    async def prune(self, child: ChildSeen) -> bool:
        """Deletes *child*, which is no longer planned, if it still exists. Raises ApiServerError."""
        live = self.view.children((child.namespace, child.flow)).get(child.id)
        if live is None or live.uid != child.uid or live.deleting:
            return False
        await self.client.delete(child.kind, child.namespace, child.name, uid=child.uid)
        self.metrics.api_writes.labels(verb="delete", kind=child.kind.plural).inc()
        self._settled.pop(child.id, None)
        return True

    def _is_there(self, wanted: Object, live: ChildSeen) -> bool:
        if live.content_hash != wanted["metadata"]["annotations"][CONTENT_HASH]:
            return False
        if self._settled.get(live.id) == (live.content_hash, live.digest):
            return True
        return holds(live.content(), _content(wanted))

    async def _found(self, wanted: Object) -> ChildSeen | None:
        """Returns the object of that name that the view lacks: None, or one that lost its flow label.

        Raises NameConflictError where it has no MirrorFlow owner.
        """
        kind, metadata = kind_of(wanted), wanted["metadata"]
        selector = f"metadata.name={metadata['name']}"
        async for _, bodies in self.client.chunks(kind, metadata["namespace"], fields=selector):
            for body in bodies:
                if not owner_uid(body):
                    raise NameConflictError(kind.name, metadata["namespace"], metadata["name"])
                return child_seen(kind, body)
        return None


def owned(planned: Object, resource: Resource) -> Object:
    """Returns *planned* with its owner reference and its content hash, which a later release compares."""
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
                    # True needs RBAC permission on the finalizers of MirrorFlows, and delays deletions.
                    "blockOwnerDeletion": False,
                }
            ],
        },
    }


def _content(wanted: Object) -> dict[str, Any]:
    """Returns the fields that `ChildSeen.content` has."""
    metadata = wanted["metadata"]
    return {
        **{name: part for name, part in wanted.items() if name not in {"apiVersion", "kind", "metadata"}},
        "metadata": {name: metadata[name] for name in ("labels", "annotations", "ownerReferences")},
    }
