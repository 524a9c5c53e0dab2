"""Logs in to the API server, for the operator's own requests and for kopf's watches."""

import ssl

import kopf

from mirrorflow_kubernetes import async_login
from mirrorflow_kubernetes.async_login import ApiServerLogin

# Enough for workers, lists and the Lease at once; beyond that, the API server's priority and fairness limits.
CONNECTIONS_MAX = 32


async def log_in() -> ApiServerLogin:
    """Returns address and credentials of the API server. Raises KubernetesLoginError where there are none."""
    return await async_login.log_in(connections_max=CONNECTIONS_MAX)


async def for_kopf(login: ApiServerLogin) -> kopf.ConnectionInfo:
    """Returns *login* as kopf takes it. kopf has no field for `tls-server-name`. Raises KubernetesLoginError."""
    configuration = login.configuration
    scheme, _, token = (await login.headers()).get("Authorization", "").partition(" ")
    return _Connection(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        trust_env=(configuration.client_session_kwargs or {}).get("trust_env", True),
    )


class _Connection(kopf.ConnectionInfo):
    """As `log_in`, a connection that accepts certificates without an authority key identifier."""

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context
