"""Single requests to an API server: what kubectl hides, statuses, bodies as they are written, and no process for each."""

import base64
import json
import ssl
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER_WAIT_S = 30.0
READY_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """HTTP's status and the JSON that came with it."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """Why it was refused, in the server's words."""
        return str(self.body.get("message", ""))


class Requests:
    """As the user of *kubeconfig*, which holds everything inline."""

    def __init__(self, kubeconfig: Path) -> None:
        content = json.loads(kubeconfig.read_text())
        self._server = content["clusters"][0]["cluster"]["server"]
        self._opener = _opener(tls_of(content))
        token = content["users"][0]["user"].get("token")
        self._identity = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __call__(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> Answer:
        """*path* begins with a slash; a text as *body* goes out as it is."""
        data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        request = urllib.request.Request(
            self._server + path,
            data=data,
            method=method,
            headers={"Content-Type": content_type, **self._identity},
        )
        try:
            with self._opener.open(request, timeout=ANSWER_WAIT_S) as answer:
                return Answer(status=answer.status, body=json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(status=error.code, body=json.load(error))


def tls_of(kubeconfig: Any) -> ssl.SSLContext | None:
    """The server's authority and the user's certificate; None where the server is asked by plain HTTP."""
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    if "certificate-authority-data" not in cluster:
        return None
    context = ssl.create_default_context(cadata=_text(cluster["certificate-authority-data"]))
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile("w") as identity:  # ssl reads certificates from files alone
            identity.write(_text(user["client-certificate-data"]) + _text(user["client-key-data"]))
            identity.flush()
            context.load_cert_chain(identity.name)
    return context


def is_ready(server: str, authority: Path) -> bool:
    """Whether the API server at the URL *server* reports that it is ready; False while it does not answer."""
    opener = _opener(ssl.create_default_context(cafile=authority))
    try:
        with opener.open(f"{server}/readyz", timeout=READY_WAIT_S) as answer:
            return bool(answer.read() == b"ok")
    except OSError:  # urllib's errors and time-outs, too
        return False


def _opener(context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Past any proxy: the servers are on this machine."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
