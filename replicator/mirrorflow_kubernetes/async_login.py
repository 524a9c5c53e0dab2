"""Logs in to a Kubernetes API server for requests by asyncio."""

from dataclasses import dataclass
from typing import Final

import aiohttp
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from mirrorflow_kubernetes.credentials import KubernetesLoginError, is_on_this_machine, kubeconfig

_TOKEN: Final = "BearerToken"  # noqa: S105  the name of a field
# The package raises the last four for a kubeconfig with other fields or types than it expects.
_FAILURES: Final = (
    ConfigException,
    aiohttp.ClientError,
    OSError,
    yaml.YAMLError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
)


@dataclass(slots=True)
class ApiServerLogin:
    """Address and credentials of an API server. `refresh` renews what expires."""

    configuration: Configuration
    _kubeconfig: KubeConfigLoader | None = None

    async def refresh(self) -> None:
        """Runs the exec plugin once its credentials have expired. Raises KubernetesLoginError.

        The token of a ServiceAccount needs no call: the package reads it again each minute.
        """
        if self._kubeconfig is None:
            return
        try:
            await self._kubeconfig.load_and_set(self.configuration)  # type: ignore[no-untyped-call]
        except _FAILURES as error:
            raise KubernetesLoginError(str(error)) from error

    async def headers(self) -> dict[str, str]:
        """Returns the header with the token; empty if a client certificate is the credential. Raises KubernetesLoginError."""
        try:
            token = await self.configuration.get_api_key_with_prefix(_TOKEN)
        except _FAILURES as error:
            raise KubernetesLoginError(str(error)) from error
        return {"Authorization": token.strip()} if token else {}

    @property
    def endpoint(self) -> tuple[object, ...]:
        """What a connection is made of. The package writes inline certificates to files, one for each content."""
        configuration = self.configuration
        tls = (
            configuration.ssl_ca_cert,
            configuration.cert_file,
            configuration.key_file,
            configuration.verify_ssl,
            configuration.tls_server_name,
        )
        return configuration.host, configuration.proxy, *tls


class _Loader(KubeConfigLoader):
    async def load_from_exec_plugin(self) -> bool:
        """Raises ConfigException where the plugin fails: the package logs why, and would continue without credentials."""
        if await super().load_from_exec_plugin() is None:  # type: ignore[no-untyped-call]
            raise ConfigException("the exec plugin failed; the line before this one says why")
        return True


def log_in_as_pod(*, connections_max: int) -> ApiServerLogin:
    """Returns address and credentials of the API server of this pod's cluster. Raises KubernetesLoginError outside of a pod."""
    configuration = _configuration(connections_max)
    # Never by a proxy: aiohttp does not understand networks in NO_PROXY, where clusters list the API server.
    configuration.client_session_kwargs = {"trust_env": False}
    try:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except _FAILURES as error:
        raise KubernetesLoginError(str(error)) from error
    return ApiServerLogin(configuration)


async def log_in(*, connections_max: int) -> ApiServerLogin:
    """Returns address and credentials of the API server. Raises KubernetesLoginError where there are none."""
    files = kubeconfig()
    if files is None:
        return log_in_as_pod(connections_max=connections_max)
    configuration = _configuration(connections_max)
    try:
        merged = KubeConfigMerger(files).config  # type: ignore[no-untyped-call]
        login = ApiServerLogin(configuration, _Loader(merged, config_base_path=None))  # type: ignore[no-untyped-call]
    except _FAILURES as error:
        raise KubernetesLoginError(str(error)) from error
    await login.refresh()
    if configuration.proxy and not configuration.proxy.startswith(("http://", "https://")):
        raise KubernetesLoginError(f"proxy-url {configuration.proxy} is not a proxy of http or https")
    if is_on_this_machine(configuration.host):
        configuration.client_session_kwargs = {"trust_env": False}
    return login


def _configuration(connections_max: int) -> Configuration:
    configuration = Configuration(connection_pool_maxsize=connections_max)
    # Since 3.13 Python refuses certificates without an authority key identifier, which the API servers of many clusters
    # use. Chain, host name and dates are still checked, as Go clients do.
    configuration.disable_strict_ssl_verification = True
    return configuration
