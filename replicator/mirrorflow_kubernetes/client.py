"""Connects to a Kubernetes API server for requests that block: those of the console and of `kubectl mirrorflow`."""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import load_incluster_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from urllib3.util import create_urllib3_context

from mirrorflow_kubernetes.credentials import KubernetesLoginError, is_on_this_machine, kubeconfig

# What a request raises: a refusal, a broken connection, or an exec plugin that fails when its token is renewed.
REQUEST_ERRORS: Final = (ApiException, urllib3.exceptions.HTTPError, ConfigException, OSError)
# The package raises the last four for a kubeconfig with other fields or types than it expects.
_LOGIN_ERRORS: Final = (*REQUEST_ERRORS, yaml.YAMLError, LookupError, ValueError, TypeError, AttributeError)
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class KubernetesConnection:
    """A client of one API server, and the namespace where its user works."""

    api: ApiClient
    namespace: str

    def get(self, path: str, params: Mapping[str, str], *, timeout_s: float) -> Any:
        """Returns the JSON at *path*, without the package's models: they take 0.7 s to import. Raises REQUEST_ERRORS."""
        method, url, headers = self.request(path, params)
        response = self.api.call_api(method, url, headers, _request_timeout=timeout_s)
        content = response.read()  # type: ignore[no-untyped-call]
        if response.status >= 400:
            raise ApiException(status=response.status, reason=response.reason, body=content.decode())
        return json.loads(content)

    @contextmanager
    def forward(self, pod: str, port: int) -> Iterator[Any]:
        """Yields the package's PortForward to *port* of *pod*, as `kubectl port-forward`. Raises REQUEST_ERRORS."""
        stream = self._forwarded(self.namespace, pod, port)
        try:
            yield stream
        finally:
            stream.close()

    def dial(self, namespace: str, pod: str, port: int) -> Any:
        """Returns a socket that is connected to *port* of *pod*, as by `kubectl port-forward`. Raises REQUEST_ERRORS.

        A thread of the package copies its bytes until it is closed.
        """
        return self._forwarded(namespace, pod, port).socket(port)

    def _forwarded(self, namespace: str, pod: str, port: int) -> Any:
        from kubernetes.stream.ws_client import portforward_call  # noqa: PLC0415  with `websocket`, for this alone

        method, url, headers = self.request(f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward", {})
        ports = [("ports", str(port))]
        return portforward_call(self.api.configuration, method, url, query_params=ports, headers=headers)  # type: ignore[no-untyped-call]

    def request(self, path: str, params: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
        """Returns method, URL and headers of a request, with the token."""
        method, url, headers, *_ = self.api.param_serialize(
            "GET",
            f"{path}?{urlencode(params)}" if params else path,
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        return method, url, headers


def connect(context: str | None = None) -> KubernetesConnection:
    """Connects by *context* of the kubeconfig, or by its current one; else as the pod's ServiceAccount.

    Nothing is sent, but exec plugins run. Raises KubernetesLoginError.
    """
    configuration = Configuration()
    files = kubeconfig()
    try:
        if files is not None:
            namespace = _load_kubeconfig(configuration, files, context)
        elif context is None:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            namespace = _NAMESPACE_FILE.read_text().strip()
        else:
            raise KubernetesLoginError(f"there is no context {context}")
        api = ApiClient(configuration)
    except _LOGIN_ERRORS as error:
        raise KubernetesLoginError(str(error)) from error
    if configuration.verify_ssl:
        # Since 3.13 Python refuses certificates without an authority key identifier, which the API servers of many
        # clusters use. Chain, host name and dates are still checked, as Go clients do.
        tls = create_urllib3_context(verify_flags=ssl.VERIFY_X509_PARTIAL_CHAIN)
        if configuration.ssl_ca_cert is None:
            tls.load_default_certs()
        api.rest_client.pool_manager.connection_pool_kw["ssl_context"] = tls
    return KubernetesConnection(api, namespace)


def _load_kubeconfig(configuration: Configuration, files: str, context: str | None) -> str:
    """Returns the namespace of *context*, whose server and credentials *configuration* gets."""
    merged = KubeConfigMerger(files).config  # type: ignore[no-untyped-call]
    if merged is None:
        raise KubernetesLoginError("there is no such file")
    names = [entry["name"] for entry in merged.value["contexts"]]
    if context is not None and context not in names:
        raise KubernetesLoginError(f"there is no context {context}; it has {', '.join(names) or 'none'}")
    loader = KubeConfigLoader(merged, active_context=context, config_base_path=None)  # type: ignore[no-untyped-call]
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    chosen = loader.current_context["context"]
    cluster = merged["clusters"].get_with_name(chosen["cluster"])["cluster"]
    if "proxy-url" not in cluster and is_on_this_machine(configuration.host):
        configuration.proxy = None
    user = merged["users"].get_with_name(chosen["user"], safe=True) if chosen.get("user") else None
    if user is not None and "exec" in user["user"] and not (configuration.api_key or configuration.cert_file):
        # The package only logs why a plugin fails, and continues without credentials.
        raise KubernetesLoginError("the exec plugin failed; the line before this one says why")
    return str(chosen.get("namespace") or "default")
