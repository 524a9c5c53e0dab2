"""The documented defaults of settings are valid and equal those of the parsers."""

import pytest

from mirrorflow_core.setting_table import KEYS, Scope, Verdict
from mirrorflow_core.settings import CheckpointSettings, HeartbeatSettings, SourceSettings
from mirrorflow_replicator.config.checkpoint_properties import parse_checkpoint
from mirrorflow_replicator.config.heartbeat_properties import parse_heartbeat
from mirrorflow_replicator.config.source_properties import parse_source

WORKER = {"bootstrap.servers": "b:9092"}
CONNECTOR = {
    "name": "mirror",
    "source.cluster.alias": "A",
    "target.cluster.alias": "target",
    "source.cluster.bootstrap.servers": "a:9092",
    "target.cluster.bootstrap.servers": "b:9092",
}
Parsed = tuple[SourceSettings, CheckpointSettings | None, HeartbeatSettings | None]


def documented(scope: Scope) -> dict[str, str]:
    """Returns the documented default of each key of *scope*."""
    return {
        key.name: key.default
        for key in KEYS
        if key.scope is scope and key.verdict is Verdict.HONOURED and key.default
    }


def parsed(connector: dict[str, str], worker: dict[str, str]) -> Parsed:
    return (
        parse_source(CONNECTOR | connector, WORKER | worker, now_ms=0),
        parse_checkpoint(CONNECTOR | connector, WORKER | worker),
        parse_heartbeat(CONNECTOR | connector, WORKER | worker),
    )


@pytest.mark.parametrize(("key", "value"), documented(Scope.CONNECTOR).items())
def test_documented_defaults_do_not_change_a_connector(key: str, value: str) -> None:
    assert parsed({key: value}, {}) == parsed({}, {})


@pytest.mark.parametrize(("key", "value"), documented(Scope.WORKER).items())
def test_documented_defaults_do_not_change_a_worker(key: str, value: str) -> None:
    assert parsed({}, {key: value}) == parsed({}, {})


def test_most_keys_have_a_documented_default() -> None:
    assert len(documented(Scope.CONNECTOR)) > 40
    assert len(documented(Scope.WORKER)) > 8
