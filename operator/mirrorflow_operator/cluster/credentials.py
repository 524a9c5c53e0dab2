"""Who the operator is to the API server: a kubeconfig where KUBECONFIG names one, else the pod's ServiceAccount."""

import os
import ssl
from dataclasses import fields

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
    return _Connection(**{field.name: getattr(found, field.name) for field in fields(found)})


class _Connection(kopf.ConnectionInfo):
    """Verifies as every Go client does.

    From 3.13 on Python refuses certificates without an authority key identifier, which the API servers of many clusters
    have. The chain, the name and the dates are checked all the same.
    """

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context
