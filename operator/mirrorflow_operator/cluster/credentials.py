"""Loads API server credentials: the kubeconfig that KUBECONFIG names, else the pod's ServiceAccount."""

import os
import ssl
from dataclasses import fields

import kopf

from mirrorflow_operator.errors import SettingsError


def connection() -> kopf.ConnectionInfo:
    """Returns address and credentials of the API server. Raises SettingsError where there are none.

    Reads them on each call, because the kubelet replaces a pod's token every hour.
    """
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
    """A connection that verifies the API server's certificate as Go clients do.

    Since 3.13 Python refuses certificates without an authority key identifier, which the API servers of many
    clusters use. Chain, host name and dates are still checked.
    """

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context
