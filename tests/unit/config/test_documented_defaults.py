"""The defaults that the notes of keys name, and so docs/settings.md, are those that the parsers use."""

import re

import pytest

from mirrorflow_core.settings import CheckpointSettings, HeartbeatSettings, SourceSettings
from mirrorflow_replicator.config.checkpoint import parse_checkpoint
from mirrorflow_replicator.config.heartbeat import parse_heartbeat
from mirrorflow_replicator.config.key_rows import Scope, Verdict
from mirrorflow_replicator.config.keys import KEYS
from mirrorflow_replicator.config.source import parse_source

WORKER = {"bootstrap.servers": "b:9092"}
CONNECTOR = {
    "name": "mirror",
    "source.cluster.alias": "A",
    "target.cluster.alias": "target",
    "source.cluster.bootstrap.servers": "a:9092",
    "target.cluster.bootstrap.servers": "b:9092",
}
# Expressions: in the note's own words, and the value behind a list of choices.
DEFAULT = re.compile(r"`(?P<choice>[^`]+)` \(default\)|\bdefault (?:`(?P<quoted>[^`]+)`|(?P<plain>-?\w+))")
NO_VALUE = {"none", "the", "as", "listeners", "and"}  # these notes describe the default
Parsed = tuple[SourceSettings, CheckpointSettings | None, HeartbeatSettings | None]


def documented(scope: Scope) -> dict[str, str]:
    """Returns key -> the default that its note names."""
    found = {}
    for key in KEYS:
        match = DEFAULT.search(key.note)
        if key.scope is not scope or key.verdict is not Verdict.HONOURED or "*" in key.name or match is None:
            continue
        value = match["choice"] or match["quoted"] or match["plain"]
        if value not in NO_VALUE and "<" not in value:
            found[key.name] = value.replace("A->B", "A->target")
    return found


def parsed(connector: dict[str, str], worker: dict[str, str]) -> Parsed:
    return (
        parse_source(CONNECTOR | connector, WORKER | worker, now_ms=0),
        parse_checkpoint(CONNECTOR | connector, WORKER | worker),
        parse_heartbeat(CONNECTOR | connector, WORKER | worker),
    )


@pytest.mark.parametrize(("key", "value"), documented(Scope.CONNECTOR).items())
def test_a_connector_is_parsed_the_same_with_its_documented_defaults(key: str, value: str) -> None:
    assert parsed({key: value}, {}) == parsed({}, {})


@pytest.mark.parametrize(("key", "value"), documented(Scope.WORKER).items())
def test_a_worker_is_parsed_the_same_with_its_documented_defaults(key: str, value: str) -> None:
    assert parsed({}, {key: value}) == parsed({}, {})


def test_the_notes_of_most_keys_name_a_default() -> None:
    assert len(documented(Scope.CONNECTOR)) > 40
    assert len(documented(Scope.WORKER)) > 8
