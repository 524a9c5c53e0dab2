"""`helm test`: the operator is ready, and the API server knows MirrorFlows.

Asks with the rights that every account has. Ends with a sentence and status 1 otherwise.
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
PAUSE_S = 3.0  # together a minute: Helm may ask before the first pod is up
ANSWER_WAIT_S = 5.0
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def ready() -> None:
    """The operator's own word."""
    with urllib.request.urlopen(os.environ["READY_URL"], timeout=ANSWER_WAIT_S):
        print("The operator is ready.")


def known() -> None:
    """The API's list of what it has, which every account may read."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    name = f"[{host}]" if ":" in host else host
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(
        f"https://{name}:{port}/apis/mirrorflow.io/v1alpha1", headers={"Authorization": f"Bearer {token}"}
    )
    trusted = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    # As Go's clients: many API servers' certificates lack what Python asks for from 3.13 on, an authority key identifier.
    trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with urllib.request.urlopen(request, timeout=ANSWER_WAIT_S, context=trusted) as answer:
        resources = {one["name"] for one in json.load(answer)["resources"]}
    if "mirrorflows" not in resources:
        raise LookupError("the API server does not know MirrorFlows: apply crds/mirrorflows.yaml")
    print("The API server knows MirrorFlows.")


def ask_until_answered(question: Callable[[], None]) -> None:
    """Ends the process with the last error, where there is no answer within the minute."""
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
