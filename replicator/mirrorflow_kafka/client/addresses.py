"""Parses `bootstrap.servers` like Java's ClientUtils: host:port or [IPv6]:port, also after protocol://."""

import re

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.property_reader import read_list

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
