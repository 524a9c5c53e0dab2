"""The planned properties of each valid example.

The golden files of `test_connector_objects` contain them, because each ConfigMap is one connector's properties.
"""

import re
from pathlib import Path

import pytest
import yaml

from mirrorflow_core.java.properties import format_properties
from mirrorflow_core.settings import LossPolicy, StartPosition
from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.plan.names import topic_selection_of
from mirrorflow_operator.plan.properties import Plan, plan
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.worker_properties import load_standalone

EXAMPLES = Path(__file__).parents[3] / "examples" / "valid"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def _plan(name: str) -> Plan:
    return plan(load_flow((EXAMPLES / f"{name}.yaml").read_text()), POD_LAYOUT)


@pytest.mark.parametrize("name", NAMES)
def test_the_replicator_accepts_each_planned_property(name: str) -> None:
    """No property causes a warning, so each has an effect."""
    for connector in _plan(name).connectors:
        settings = load_standalone(
            format_properties(connector.worker_properties),
            [format_properties(connector.connector_properties)],
        )

        assert () == settings.warnings


def _changed(**spec: object) -> Plan:
    document = yaml.safe_load((EXAMPLES / "smallest.yaml").read_text())
    document["spec"] |= spec
    return plan(load_flow(yaml.safe_dump(document)), POD_LAYOUT)


@pytest.mark.parametrize(
    ("spec", "kinds", "note"),
    [
        ({}, ["MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector"], ""),
        ({"groups": {"include": []}}, ["MirrorSourceConnector", "MirrorHeartbeatConnector"], ""),
        ({"heartbeats": {"emitTo": []}}, ["MirrorSourceConnector", "MirrorCheckpointConnector"], ""),
        (
            {"connectors": {"source": {"config": {"emit.offset-syncs.enabled": "false"}}}},
            ["MirrorSourceConnector", "MirrorHeartbeatConnector"],
            "Consumer groups are not translated: emit.offset-syncs.enabled=false",
        ),
    ],
    ids=["all three", "no groups", "no heartbeats", "no offset syncs"],
)
def test_connector_without_work_is_not_planned(spec: dict[str, object], kinds: list[str], note: str) -> None:
    """A note explains what the spec requests but cannot be done."""
    planned = _changed(**spec)

    assert kinds == [connector.kind.java_class for connector in planned.connectors]
    assert bool(note) == bool(planned.notes)
    assert note in " ".join(planned.notes)


def test_naming_in_the_source_connectors_config_applies_to_all_connectors() -> None:
    """A connector with different names would not find the topics of the others."""
    key = "replication.policy.internal.topic.separator.enabled"

    planned = _changed(connectors={"source": {"config": {key: "false"}}})

    assert ["false"] * 3 == [connector.connector_properties[key] for connector in planned.connectors]


def test_transforms_of_the_source_connector_apply_to_the_checkpoint_connector() -> None:
    """The checkpoint connector needs the names of copies. Heartbeats are not transformed."""
    lines = {
        "transforms": "r",
        "transforms.r.type": "RegexRouter",
        "transforms.r.regex": "a",
        "transforms.r.replacement": "b",
    }

    source, checkpoint, *others = _changed(connectors={"source": {"config": lines}}).connectors

    for connector in (source, checkpoint):
        assert lines.items() <= connector.connector_properties.items()
    assert not any(
        key.startswith("transforms") for connector in others for key in connector.connector_properties
    )


def test_fields_of_the_spec_reach_the_settings_of_the_replicator() -> None:
    """The conversion to Java's property names loses nothing."""
    source = _plan("identity-from-a-moment").connectors[0]

    settings = (
        load_standalone(
            format_properties(source.worker_properties), [format_properties(source.connector_properties)]
        )
        .connectors[0]
        .source
    )

    assert settings is not None
    assert ("east-to-west", "east", "west") == (settings.flow, settings.source_alias, settings.target_alias)
    assert ("orders", "payments\\..*") == settings.topics
    assert (StartPosition.TIMESTAMP, 1_769_817_600_000) == (settings.start, settings.start_timestamp_ms)
    assert (LossPolicy.ALERT, True, 1_000_000, 4, 3) == (
        settings.on_source_loss,
        settings.read_committed,
        settings.bytes_per_second,
        settings.tasks_max,
        settings.replication_factor,
    )
    assert settings.sync_configs_s is None
    assert "mm2-offsets.east.internal" == settings.offsets.topic


@pytest.mark.parametrize("name", NAMES)
def test_the_operator_and_the_planned_connector_select_the_same_topics(name: str) -> None:
    """The operator detects conflicts between flows by topic names."""
    source = _plan(name).connectors[0]
    worker = load_standalone(
        format_properties(source.worker_properties), [format_properties(source.connector_properties)]
    )
    settings = worker.connectors[0].source

    assert settings is not None
    assert topic_selection_of(load_flow((EXAMPLES / f"{name}.yaml").read_text())) == make_selection(settings)


# A login with the identity of the pod, or with an assertion, needs no secret.
_WITHOUT_SECRET = re.compile(r'OAuthBearerLoginModule required( (aws\w+|clientId)="[^"]*")*;$')


@pytest.mark.parametrize("name", NAMES)
def test_planned_secrets_are_references(name: str) -> None:
    """Properties of passwords, secrets and keys contain `${...}` instead of the value."""
    for connector in _plan(name).connectors:
        for properties in (connector.worker_properties, connector.connector_properties):
            for key, value in properties.items():
                if key.endswith(("sasl.jaas.config", "keystore.key")):
                    assert all(
                        secret.startswith("${")
                        for secret in re.findall(r'(?:password|clientSecret)="([^"]*)"', value)
                    )
                    assert "${" in value or _WITHOUT_SECRET.search(value)


def test_quotes_in_a_user_name_are_escaped_in_the_jaas_config() -> None:
    text = (EXAMPLES / "everything.yaml").read_text().replace("{value: mirror}", "{value: 'a\"b\\c'}")

    worker = plan(load_flow(text), POD_LAYOUT).connectors[0].connector_properties

    assert 'username="a\\"b\\\\c"' in worker["source.cluster.sasl.jaas.config"]
