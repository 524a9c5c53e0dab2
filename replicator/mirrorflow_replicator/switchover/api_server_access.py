"""Sends requests to the API server of Kubernetes with the credentials of this pod, whose Role limits them."""

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HOST_KEY, PORT_KEY = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
CREDENTIALS: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_S: Final = 10.0  # the API server of the same cluster; a request that fails is repeated
BODY_MAX_BYTES: Final = 2 * 1024 * 1024  # an object has at most 1.5 MiB
_MERGE: Final = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerAccess:
    """How a pod reaches the API server. *credentials* has the files `token` and `ca.crt`, which are renewed."""

    host: str
    port: int
    credentials: Path = CREDENTIALS

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Returns the object in the response. Raises OSError, ValueError, http.client.HTTPException, ApiRefusalError."""
        token = (self.credentials / "token").read_text(encoding="ascii").strip()
        context = ssl.create_default_context(cafile=str(self.credentials / "ca.crt"))
        # Since 3.13 Python refuses certificates without an authority key identifier, which many API servers have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=REQUEST_S, context=context)
        try:
            headers = {
                "Authorization": f"Bearer {token}",
                "Accept": "application/json",
                "Content-Type": _MERGE if method == "PATCH" else "application/json",
            }
            text = None if body is None else json.dumps(body)
            connection.request(method, path, body=text, headers=headers)
            response = connection.getresponse()
            value = json.loads(response.read(BODY_MAX_BYTES))
        finally:
            connection.close()
        if not isinstance(value, dict):
            raise ValueError("the response is no object")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
        if response.status >= http.client.BAD_REQUEST:
            raise ApiRefusalError(response.status, str(value.get("message", "")))
        return value


class ApiRefusalError(Exception):
    """The API server has refused a request."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"HTTP status {status}: {message}")


def pod_access(environment: Mapping[str, str] = os.environ) -> ApiServerAccess | None:
    """Returns how this pod reaches the API server; None if this process runs in none."""
    host, port = environment.get(HOST_KEY, ""), environment.get(PORT_KEY, "")
    return ApiServerAccess(host=host, port=int(port)) if host and port.isdigit() else None
