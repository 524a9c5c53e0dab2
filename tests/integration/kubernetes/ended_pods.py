"""Ends pods as a kubelet does, on an API server without nodes."""

import json
from typing import Any

from tests.harness.kubernetes.kubectl import Kubectl


def end_pod(namespace: Kubectl, pod: dict[str, Any], *, exit_code: int = 0, message: str = "") -> None:
    """Writes the status of *pod*, whose only container has ended with *exit_code* and left *message*."""
    (container,) = pod["spec"]["containers"]
    terminated = {
        "exitCode": exit_code,
        "reason": "Error" if exit_code else "Completed",
        "message": message,
        "startedAt": "2026-11-30T10:00:00Z",
        "finishedAt": "2026-11-30T10:00:09Z",
    }
    ended = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": terminated},
    }
    status = {"phase": "Failed" if exit_code else "Succeeded", "containerStatuses": [ended]}
    body, name = json.dumps({"status": status}), pod["metadata"]["name"]
    namespace("patch", "pod", name, "--subresource=status", "--type=merge", f"--patch={body}")
