"""The id by which a flow claims its source alias on the target, and the name that it shows.

The same MirrorFlow may be applied to two Kubernetes clusters, and each must notice the other. So the id of a flow
that an operator runs has, after its name, the namespace and the Kubernetes cluster: `orders@payments.<uid>`. Any
other flow, such as one that `mirrorflow run` runs, has its name as its id.
"""

from typing import Final

_PLACE: Final = "@"  # neither names of MirrorFlows nor MM2's `A->B` have it


def flow_id(name: str, namespace: str, kubernetes_id: str) -> str:
    """Returns the id of flow *name* in a namespace; *kubernetes_id*: of the Kubernetes cluster, "" if unknown."""
    place = f"{namespace}.{kubernetes_id}" if kubernetes_id else namespace
    return f"{name}{_PLACE}{place}"


def flow_name(id_: str) -> str:
    """Returns the name of the flow with this id, for labels of metrics and reports."""
    return id_.partition(_PLACE)[0]


def runs_elsewhere(id_: str, owner: str) -> bool:
    """Returns whether *owner* is the flow of the file with flow id *id_*, run by an operator."""
    return id_ == flow_name(owner) != owner
