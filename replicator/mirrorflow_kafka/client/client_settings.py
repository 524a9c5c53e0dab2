"""Checks a client's connection settings before anything starts, and parses `bootstrap.servers`.

Rejects what no broker, file or secret can make valid. Errors that may be transient are left to the connection:
unresolvable host names, missing files and secrets. Addresses are those of Java's ClientUtils: host:port or
[IPv6]:port, also after protocol://.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from mirrorflow_core.errors import InvalidSettingError, SettingError
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_core.java.jaas import resolve_jaas
from mirrorflow_core.java.properties import has_reference, reference_at
from mirrorflow_core.java.property_reader import read_list
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.security.client_security import check_protocol
from mirrorflow_kafka.security.sasl import chosen_mechanism, login_module, password_login

_ADDRESS = re.compile(r"^(?:[a-zA-Z][a-zA-Z\d_+.-]*://)?\[?([0-9a-zA-Z\-%._:]+)\]?:(\d{1,5})$")
PORT_MAX = 65535


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Return (host, port) of each address. Raises InvalidSettingError that names the invalid one."""
    addresses = []
    for entry in read_list(text):
        found = _ADDRESS.match(entry)
        if found is None or not 0 < int(found[2]) <= PORT_MAX:
            raise InvalidSettingError(
                key="bootstrap.servers",
                problem=f"{entry!r} is not host:port",
                action="write host:port,host:port",
            )
        addresses.append((found[1], int(found[2])))
    if not addresses:
        raise InvalidSettingError(
            key="bootstrap.servers", problem="no address is given", action="write host:port,host:port"
        )
    return tuple(addresses)


_UNKNOWN = "unknown"  # stands for what a reference resolves to


class ClientSettingError(SettingError):
    """Raised for *error* in the settings of a client of *cluster*."""

    def __init__(self, *, cluster: str, error: SettingError) -> None:
        self.cluster = cluster
        super().__init__(f"Clients of cluster {cluster}: {error}")


def clients_of(settings: object) -> Iterator[ClientSettings]:
    """Yield every client in *settings*: a dataclass of `mirrorflow_core.settings`, or a tuple of them."""
    if isinstance(settings, ClientSettings):
        yield settings
    elif isinstance(settings, tuple):
        for one in settings:
            yield from clients_of(one)
    elif is_dataclass(settings):
        for field in fields(settings):
            yield from clients_of(getattr(settings, field.name))


def check_client(client: ClientSettings) -> None:
    """Check addresses, protocol, mechanism and login of *client*; values with secret references pass.

    Raises ClientSettingError.
    """
    try:
        _check(client.properties)
    except SettingError as error:
        raise ClientSettingError(cluster=client.alias, error=error) from None


def _check(properties: Mapping[str, str]) -> None:
    known = {key: value for key, value in properties.items() if not has_reference(value)}
    if known.get("bootstrap.servers"):
        parse_addresses(known["bootstrap.servers"])
    hidden = properties.keys() - known.keys()
    if hidden & {"security.protocol", "sasl.mechanism"}:
        return
    protocol, _ = check_protocol(known)
    if not protocol.startswith("SASL"):
        return
    mechanism, text = chosen_mechanism(known), properties.get(JAAS, "")
    if reference_at(text.strip(), 0):
        return  # the whole login is a secret
    module = login_module(known | {JAAS: resolve_jaas(text, lambda _: _UNKNOWN)}, mechanism)
    if mechanism != "OAUTHBEARER":
        password_login(module, mechanism)
