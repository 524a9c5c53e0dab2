"""The resources of Connect's REST API and their methods. Pure.

They are those of ConnectorsResource and others of Kafka 4.3.
"""

import re
from collections.abc import Sequence

READING = ("GET", "HEAD", "OPTIONS")
_ANY = "*"
_NUMBER = "#"  # Java's Integer parameter: text that is not an integer matches no resource
_INTEGER = re.compile(r"-?[0-9]+")
_RESOURCES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("GET",)),
    ("health", ("GET",)),
    ("connectors", ("GET", "POST")),
    ("connectors/*", ("GET", "DELETE")),
    ("connectors/*/config", ("GET", "PUT", "PATCH")),
    ("connectors/*/status", ("GET",)),
    ("connectors/*/topics", ("GET",)),
    ("connectors/*/topics/reset", ("PUT",)),
    ("connectors/*/offsets", ("GET", "PATCH", "DELETE")),
    ("connectors/*/restart", ("POST",)),
    ("connectors/*/pause", ("PUT",)),
    ("connectors/*/resume", ("PUT",)),
    ("connectors/*/stop", ("PUT",)),
    ("connectors/*/fence", ("PUT",)),
    ("connectors/*/tasks", ("GET", "POST")),
    ("connectors/*/tasks/#/status", ("GET",)),
    ("connectors/*/tasks/#/restart", ("POST",)),
    ("connectors/*/tasks-config", ("GET",)),  # until 3.9
    ("connector-plugins", ("GET",)),
    ("connector-plugins/*/config", ("GET",)),
    ("connector-plugins/*/config/validate", ("PUT",)),
    ("admin/loggers", ("GET",)),
    ("admin/loggers/*", ("GET", "PUT")),
)


def methods(path: Sequence[str]) -> tuple[str, ...]:
    """Returns the methods of the resource at *path* (its parts), sorted; none if it does not exist."""
    for pattern, found in _RESOURCES:
        parts = pattern.split("/") if pattern else []
        if len(parts) == len(path) and all(map(_matches, parts, path)):
            return tuple(sorted({*found, "OPTIONS", *(("HEAD",) if "GET" in found else ())}))
    return ()


def _matches(pattern: str, part: str) -> bool:
    if pattern == _NUMBER:
        return _INTEGER.fullmatch(part) is not None
    return pattern in (_ANY, part)
