"""The plan of each valid example, property by property.

Goldens are `golden/smallest.properties`, and of each other example the difference from it (`tests.harness.goldens`).
"""

import re
from pathlib import Path

import pytest
import yaml

from mirrorflow_core.java.properties import format_properties
from mirrorflow_core.settings import LossPolicy, StartPosition
from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.plan.names import topic_selection_of
from mirrorflow_operator.plan.properties import POD_LAYOUT, Plan, plan
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.worker_properties import load_standalone
from tests.harness.goldens import check_golden, text_difference

EXAMPLES = Path(__file__).parents[3] / "examples" / "valid"
GOLDENS = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
FULL = "smallest"


def _plan(name: str) -> Plan:
    return plan(load_flow((EXAMPLES / f"{name}.yaml").read_text()), POD_LAYOUT)


def _text(planned: Plan) -> str:
    parts = []
    for connector in planned.connectors:
        parts.append(f"# {connector.name}: worker\n")
        parts.append(format_properties(connector.worker_properties))
        parts.append(f"# {connector.name}: connector\n")
        parts.append(format_properties(connector.connector_properties))
    parts.extend(f"# {note}\n" for note in planned.notes)
    return "".join(parts)


@pytest.mark.parametrize("name", NAMES)
def test_plan_is_the_golden(name: str) -> None:
    """Same flow, same bytes; a change is seen in review."""
    text = _text(_plan(name))
    if name == FULL:
        check_golden(GOLDENS / f"{name}.properties", text)
    else:
        check_golden(GOLDENS / f"{name}.properties.diff", text_difference(_text(_plan(FULL)), text))


@pytest.mark.parametrize("name", NAMES)
def test_replicator_understands_every_property_of_its_plan(name: str) -> None:
    """The reader of the properties accepts them without a warning, so that nothing is planned in vain."""
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
    ("spec", "kinds", "noted"),
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
def test_connector_without_work_is_not_planned(spec: dict[str, object], kinds: list[str], noted: str) -> None:
    """With a note where the spec asks for what cannot be done."""
    planned = _changed(**spec)

    assert kinds == [connector.kind.java_class for connector in planned.connectors]
    assert bool(noted) == bool(planned.notes)
    assert noted in " ".join(planned.notes)


def test_naming_in_the_source_connectors_config_applies_to_all_connectors() -> None:
    """One that names topics otherwise would look for the others' in vain."""
    key = "replication.policy.internal.topic.separator.enabled"

    planned = _changed(connectors={"source": {"config": {key: "false"}}})

    assert ["false"] * 3 == [connector.connector_properties[key] for connector in planned.connectors]


def test_transformations_of_the_source_connector_reach_the_checkpoint_connector() -> None:
    """It has to know what copies are called; heartbeats pass through none."""
    lines = {
        "transforms": "r",
        "transforms.r.type": "RegexRouter",
        "transforms.r.regex": "a",
        "transforms.r.replacement": "b",
    }

    source, checkpoint, *others = _changed(connectors={"source": {"config": lines}}).connectors

    for connector in (source, checkpoint):
        assert lines.items() <= connector.connector_properties.items()
    assert not any(key.startswith("transforms") for one in others for key in one.connector_properties)


def test_fields_arrive_in_the_settings() -> None:
    """The way through Java's names loses nothing."""
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
def test_the_operator_selects_topics_as_the_planned_connector(name: str) -> None:
    """Conflicts between flows are found by the names that connectors use."""
    source = _plan(name).connectors[0]
    worker = load_standalone(
        format_properties(source.worker_properties), [format_properties(source.connector_properties)]
    )
    settings = worker.connectors[0].source

    assert settings is not None
    assert topic_selection_of(load_flow((EXAMPLES / f"{name}.yaml").read_text())) == make_selection(settings)


@pytest.mark.parametrize("name", NAMES)
def test_secrets_are_references(name: str) -> None:
    """Whatever is called a password, secret or key holds `${...}` and nothing else of worth."""
    for connector in _plan(name).connectors:
        for properties in (connector.worker_properties, connector.connector_properties):
            for key, value in properties.items():
                if key.endswith(("sasl.jaas.config", "keystore.key")):
                    assert all(
                        secret.startswith("${")
                        for secret in re.findall(r'(?:password|clientSecret)="([^"]*)"', value)
                    )
                    assert "${" in value


def test_quotes_in_a_user_name_do_not_end_the_login_configuration() -> None:
    """A name with a quote stays one name."""
    text = (EXAMPLES / "everything.yaml").read_text().replace("{value: mirror}", "{value: 'a\"b\\c'}")

    worker = plan(load_flow(text), POD_LAYOUT).connectors[0].connector_properties

    assert 'username="a\\"b\\\\c"' in worker["source.cluster.sasl.jaas.config"]
