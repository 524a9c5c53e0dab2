"""Converts a Java client's properties file (`--from-config`, `--to-config`) into cluster fields.

No secret of the file is copied: properties that may hold one become references to their key in the file
(FileConfigProvider), which the connector's process resolves.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirrorflow_cli.errors import UsageError
from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import parse_properties
from mirrorflow_operator.api.rules.clusters import may_hold_secret
from mirrorflow_operator.plan.layout import FILE_PROVIDER

ADDRESSES = "bootstrap.servers"
_PROTOCOL = "security.protocol"
_HOST_NAMES = "ssl.endpoint.identification.algorithm"
_ENDS_A_PATH = (":", "}")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def read_client_file(name: str, flag: str) -> dict[str, str]:
    """Returns the properties in the file *name*. Raises UsageError if the file cannot be read or parsed."""
    try:
        return parse_properties(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidSettingError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{flag}: {name} cannot be read: {why}") from error


def cluster_fields(properties: Mapping[str, str], name: str, flag: str) -> dict[str, Any]:
    """Returns `tls`, `authentication` and `config` of a cluster from the *properties* of the file *name*.

    Raises UsageError for a `security.protocol` that Kafka does not have, and for a path that a reference
    cannot hold.
    """
    protocol = properties.get(_PROTOCOL, "").strip().upper() or "PLAINTEXT"
    if protocol not in _PROTOCOLS:
        raise UsageError(f"{flag}: {_PROTOCOL}={protocol} in {name} is none of {', '.join(_PROTOCOLS)}.")
    path = Path(name).resolve()
    fields: dict[str, Any] = {}
    if protocol.endswith("SSL"):
        fields["tls"] = {"verifyHostname": properties.get(_HOST_NAMES, "https") != ""}
    own = {
        key: _reference(path, key, flag) if may_hold_secret(key) else value
        for key, value in properties.items()
        if key.startswith(("sasl.", "ssl.")) and key != _HOST_NAMES
    }
    if own and protocol != "PLAINTEXT":
        fields["authentication"] = {"type": "Custom", "sasl": protocol.startswith("SASL"), "config": own}
    more = {
        key: value
        for key, value in properties.items()
        if key not in own
        and key not in {ADDRESSES, _PROTOCOL, _HOST_NAMES}
        and not key.startswith(("sasl.", "ssl."))
    }
    return fields | ({"config": more} if more else {})


def _reference(path: Path, key: str, flag: str) -> str:
    """Returns a FileConfigProvider reference, `${file:PATH:KEY}`.

    Java has no escapes in it. Raises UsageError for a path with `:` or `}`.
    """
    for character in _ENDS_A_PATH:
        if character in str(path):
            raise UsageError(
                f"{flag}: {path} holds a {character!r}, and the passwords in it are referred to by its path; "
                "move the file to a path without one."
            )
    return f"${{{FILE_PROVIDER}:{path}:{key}}}"
