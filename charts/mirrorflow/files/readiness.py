"""`helm test`: the operator is ready, and the MirrorFlow CRD is installed.

It needs only rights that every account has. Otherwise it exits with a message and status 1.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

TRIES = 20
PAUSE_S = 3.0  # a minute in total: Helm may run the test before the first pod is ready
RESPONSE_WAIT_S = 5.0
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def ready() -> None:
    """Requests the operator's readiness."""
    with urllib.request.urlopen(os.environ["READY_URL"], timeout=RESPONSE_WAIT_S):
        print("The operator is ready.")


def known() -> None:
    """Checks that the API server lists MirrorFlows, which every account may read."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    name = f"[{host}]" if ":" in host else host
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(
        f"https://{name}:{port}/apis/mirrorflow.io/v1alpha1", headers={"Authorization": f"Bearer {token}"}
    )
    trusted = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    # Like Go clients: many API servers' certificates lack the authority key identifier that Python requires since 3.13.
    trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with urllib.request.urlopen(request, timeout=RESPONSE_WAIT_S, context=trusted) as response:
        resources = {resource["name"] for resource in json.load(response)["resources"]}
    if "mirrorflows" not in resources:
        raise LookupError("the MirrorFlow CRD is not installed: apply crds/mirrorflows.yaml")
    print("The MirrorFlow CRD is installed.")


def ask_until_answered(question: Callable[[], None]) -> None:
    """Repeats *question* for a minute; then exits with the last error."""
    for left in reversed(range(TRIES)):
        try:
            question()
        except (OSError, LookupError) as error:
            if not left:
                sys.exit(f"{question.__name__}: {error}")
            time.sleep(PAUSE_S)
        else:
            return


if __name__ == "__main__":
    ask_until_answered(ready)
    ask_until_answered(known)
