"""Runs oauth2-proxy with the arguments of examples/console-oidc, at addresses of a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness.kafka.processes import accepts, free_port, start, wait_until
from tests.harness.kubernetes.installation import OAUTH2_PROXY

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "console-oidc" / "oauth2-proxy.yaml"
# The values of the example that a test replaces.
ISSUER: Final = "https://issuer.example"
CONSOLE: Final = "http://mirrorflow-console:8080"
PUBLIC: Final = "https://console.example"
LISTENER: Final = "0.0.0.0:4180"
SECRETS: Final = "/etc/oauth2"
CALLBACK: Final = "/oauth2/callback"


def example_arguments() -> list[str]:
    """Returns the arguments of the example's container."""
    manifests: list[Any] = [*yaml.safe_load_all(EXAMPLE.read_text())]
    (container,) = manifests[0]["spec"]["template"]["spec"]["containers"]
    return [str(argument) for argument in container["args"]]


@contextmanager
def oauth2_proxy(
    folder: Path, *, port: int, issuer: str, issuer_ca: Path, console: str, client_secret: str
) -> Iterator[str]:
    """Yields the address of a proxy on *port* before *console*. The proxy signs users in at *issuer*."""
    folder.mkdir()
    (folder / "client-secret").write_text(client_secret)
    (folder / "cookie-secret").write_text("0123456789abcdef0123456789abcdef")
    url = f"http://127.0.0.1:{port}"
    replaced = {
        ISSUER: issuer,
        CONSOLE: console,
        PUBLIC: url,
        LISTENER: f"127.0.0.1:{port}",
        SECRETS: str(folder),
    }
    arguments = example_arguments()
    for example, value in replaced.items():
        assert any(example in argument for argument in arguments), example
        arguments = [argument.replace(example, value) for argument in arguments]
    # The issuer's authority was created by the test, and the test's client keeps cookies without TLS.
    arguments += [f"--provider-ca-file={issuer_ca}", f"--metrics-address=127.0.0.1:{free_port()}"]
    child = start(
        "oauth2-proxy", [str(OAUTH2_PROXY / "oauth2-proxy"), *arguments], log=folder / "oauth2-proxy.log"
    )

    def listens() -> bool:
        child.must_run()
        return accepts(port)

    try:
        wait_until("oauth2-proxy listens", listens)
        yield url
    finally:
        child.kill()
