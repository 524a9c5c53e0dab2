"""`--from`, `--to`, `--topics` and `--groups` as the MirrorFlow that they stand for, and its slips in their words."""

import argparse
import re
from collections.abc import Iterable
from typing import Any

from mirrorflow_operator.api.spec import API_VERSION, KIND, NAME_MAX
from mirrorflow_operator.errors import InvalidSpecError


def document_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The document that a file would hold."""
    source, target = arguments.from_alias or "source", arguments.to_alias or "target"
    name = re.sub(r"[^a-z0-9]+", "-", f"{source}-to-{target}".lower()).strip("-")[:NAME_MAX].strip("-")
    topics = _patterns(arguments.topics or [".*"])
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "source": {"alias": source, "bootstrapServers": _addresses(arguments.source)},
            "target": {"alias": target, "bootstrapServers": _addresses(arguments.target)},
            "topics": {"include": topics},
            # Whoever names topics alone gets records alone: nothing is written to the source, no group is moved.
            "groups": {"include": _patterns(arguments.groups or [])},
            "heartbeats": {"emitTo": []},
        },
    }


def _patterns(texts: Iterable[str]) -> list[str]:
    return [pattern.strip() for text in texts for pattern in text.split(",") if pattern.strip()]


def _addresses(text: str) -> list[str]:
    return [address.strip() for address in text.split(",") if address.strip()]


_FLAGS = {
    "spec.source.bootstrapServers": "--from",
    "spec.target.bootstrapServers": "--to",
    "spec.topics.include": "--topics",
    "spec.groups.include": "--groups",
    "spec.source.alias": "--from-alias",
    "spec.target.alias": "--to-alias",
}


def in_flags(error: InvalidSpecError, arguments: argparse.Namespace) -> str:
    """A line for each slip, by the flag or the field that the user wrote."""
    lines = [str(one) for one in error.errors]
    if arguments.file:
        return "\n".join(f"{arguments.file}: {line}" for line in lines)
    for path, flag in _FLAGS.items():
        lines = [line.replace(path, flag) for line in lines]
    return "\n".join(lines)
