"""Applies the chart's rights of Switchovers to a namespace of a shared API server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mirrorflow_replicator.switchover.api_server_access import ApiRefusalError, ApiServerAccess
from tests.harness.kubernetes.chart import rendered
from tests.harness.kubernetes.installation import require_helm
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.skipping import skip_without


@contextmanager
def switchover_rights(namespace: Kubectl, kind: str, **pair: Any) -> Iterator[None]:
    """Applies the Role and the admission policy for *pair* under `switchovers.<kind>`; deletes the policy at the end."""
    skip_without(require_helm)
    values = {"switchovers": {kind: [{"namespace": namespace.namespace, **pair}]}}
    of_pair = [
        item
        for item in rendered(values)
        if item["metadata"]["name"].endswith(("-switchovers", f"-{kind}-{pair['pair']}"))
    ]
    for item in of_pair:
        namespace.apply(item)
    yield
    for item in of_pair:
        if item["kind"].startswith("Validating"):
            namespace("delete", item["kind"], item["metadata"]["name"])


def refusal_of(access: ApiServerAccess, method: str, path: str, body: dict[str, Any] | None) -> str:
    """Returns why the API server refuses a request; "" if it does not."""
    try:
        access.request(method, path, body)
    except ApiRefusalError as error:
        return str(error)
    return ""
