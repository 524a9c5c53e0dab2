"""Builds a MirrorFlow from `--from`, `--to`, `--topics` and `--groups`; errors name these flags."""

import argparse
import re
from collections.abc import Iterable
from typing import Any

from mirrorflow_cli.client_file import ADDRESSES, cluster_fields, read_client_file
from mirrorflow_cli.errors import UsageError
from mirrorflow_core.java.property_reader import read_list
from mirrorflow_operator.api.spec import API_VERSION, KIND, NAME_MAX
from mirrorflow_operator.errors import InvalidSpecError


def document_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the MirrorFlow document that the flags stand for."""
    source, target = arguments.from_alias or "source", arguments.to_alias or "target"
    name = re.sub(r"[^a-z0-9]+", "-", f"{source}-to-{target}".lower()).strip("-")[:NAME_MAX].strip("-")
    topics = _patterns(arguments.topics or [".*"])
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "source": {"alias": source, **_cluster(arguments.source, arguments.from_config, "--from-config")},
            "target": {"alias": target, **_cluster(arguments.target, arguments.to_config, "--to-config")},
            "topics": {"include": topics, **_naming(arguments)},
            # By default flags copy records only: nothing is written to the source, no group is synchronised.
            "groups": {"include": _patterns(arguments.groups or [])},
            "heartbeats": {"emitTo": []},
        },
    }


def _naming(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"naming": {"policy": arguments.naming}} if arguments.naming else {}


def _cluster(addresses: str | None, file: str | None, flag: str) -> dict[str, Any]:
    """Returns the fields of one cluster. Raises UsageError for a bad file or a missing address."""
    if file is None:
        return {"bootstrapServers": read_list(addresses or "")}
    properties = read_client_file(file, flag)
    found = addresses or properties.get(ADDRESSES, "")
    if not found:
        word = flag.removesuffix("-config")
        raise UsageError(f"{flag}: {file} has no {ADDRESSES}; add it, or give {word} HOST:PORT.")
    return {"bootstrapServers": read_list(found), **cluster_fields(properties, file, flag)}


def _patterns(texts: Iterable[str]) -> list[str]:
    return [pattern for text in texts for pattern in read_list(text)]


_FLAGS = {
    "spec.source.bootstrapServers": "--from",
    "spec.target.bootstrapServers": "--to",
    "spec.topics.include": "--topics",
    "spec.groups.include": "--groups",
    "spec.source.authentication.config": "--from-config",
    "spec.target.authentication.config": "--to-config",
    "spec.source.config": "--from-config",
    "spec.target.config": "--to-config",
    "spec.source.alias": "--from-alias",
    "spec.target.alias": "--to-alias",
}


def in_flags(error: InvalidSpecError, arguments: argparse.Namespace) -> str:
    """Returns one line per error, with the flag or the field as the user wrote it."""
    lines = [str(one) for one in error.errors]
    if arguments.file:
        return "\n".join(f"{arguments.file}: {line}" for line in lines)
    for path, flag in _FLAGS.items():
        lines = [line.replace(path, flag) for line in lines]
    return "\n".join(lines)
