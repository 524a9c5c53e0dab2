"""Pods that no kubelet runs, made to look as if one did: Running, Ready, with an address of this machine.

For API servers without nodes: the Deployment controller counts them, and the operator asks the stub connector that
listens at the address.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.harness.kubernetes.requests import Requests

_SINCE = "2026-01-01T00:00:00Z"
MERGE = "application/merge-patch+json"


def run_pods(requests: Requests, addresses: Iterable[str], *, namespace: str | None = None) -> int:
    """Every pod that is Pending gets one of *addresses* and is Ready; how many."""
    left = iter(addresses)
    inside = "" if namespace is None else f"/namespaces/{namespace}"
    pending = [
        pod for pod in listed(requests, f"/api/v1{inside}/pods") if pod["status"].get("phase") == "Pending"
    ]
    for pod in pending:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        answer = requests("PATCH", path, json.dumps(_running(pod, next(left))), content_type=MERGE)
        # A controller may have taken it away since it was listed.
        assert answer.status in {200, 404}, answer.message
    return len(pending)


def listed(requests: Requests, path: str) -> Iterator[Any]:
    """Everything at *path*, a chunk at a time."""
    following = ""
    while True:
        body = requests("GET", f"{path}?limit=500&continue={following}").body
        yield from body["items"]
        following = body["metadata"].get("continue", "")
        if not following:
            return


def _running(pod: Any, address: str) -> dict[str, Any]:
    container = pod["spec"]["containers"][0]
    return {
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": _SINCE,
            "conditions": [
                {"type": word, "status": "True", "lastTransitionTime": _SINCE}
                for word in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": _SINCE}},
                }
            ],
        }
    }
