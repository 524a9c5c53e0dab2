"""Who the operator is to the API server: a kubeconfig where KUBECONFIG names one, else the pod's ServiceAccount."""

import os

import kopf

from mirrorflow_operator.errors import SettingsError


def connection() -> kopf.ConnectionInfo:
    """Read anew each time: kubelet replaces a pod's token every hour. Raises SettingsError where there is neither."""
    settings = kopf.OperatorSettings()
    found = None
    if os.environ.get("KUBECONFIG"):
        found = kopf.login_with_kubeconfig(settings=settings)
    found = found or kopf.login_with_service_account(settings=settings)
    if found is None:
        raise SettingsError(
            "KUBECONFIG", "", "name a kubeconfig, or run in a pod with a ServiceAccount token"
        )
    return found
