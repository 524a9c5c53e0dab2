"""Simulates running pods on API servers without nodes. It writes Running, Ready and an address of this machine into
pods.

The Deployment controller counts them, and the operator polls the stub connector that listens at the address.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.harness.kubernetes.requests import Requests

_SINCE = "2026-01-01T00:00:00Z"
MERGE = "application/merge-patch+json"


def mark_pods_running(requests: Requests, addresses: Iterable[str], *, namespace: str | None = None) -> int:
    """Gives every Pending pod one of *addresses* and makes it Ready. Returns the number of pods."""
    remaining_addresses = iter(addresses)
    scope = "" if namespace is None else f"/namespaces/{namespace}"
    pending = [
        pod for pod in listed(requests, f"/api/v1{scope}/pods") if pod["status"].get("phase") == "Pending"
    ]
    for pod in pending:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        response = requests(
            "PATCH", path, json.dumps(_running(pod, next(remaining_addresses))), content_type=MERGE
        )
        # A controller may have deleted the pod since it was listed.
        assert response.status in {200, 404}, response.message
    return len(pending)


def listed(requests: Requests, path: str) -> Iterator[Any]:
    """Yields every object at *path*, page by page."""
    continue_token = ""
    while True:
        body = requests("GET", f"{path}?limit=500&continue={continue_token}").body
        yield from body["items"]
        continue_token = body["metadata"].get("continue", "")
        if not continue_token:
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
                {"type": condition, "status": "True", "lastTransitionTime": _SINCE}
                for condition in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
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
