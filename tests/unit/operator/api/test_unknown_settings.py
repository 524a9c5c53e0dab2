"""A flow with an unknown key in `config` is invalid. Each key of MirrorMaker 2 is known."""

import pytest

from mirrorflow_core.setting_table import CONNECTOR_SCOPES, KEYS, SYNONYMS, Scope
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.api.workloads import field_of
from mirrorflow_operator.errors import InvalidSpecError

UNKNOWN = "neither MirrorMaker 2 nor MirrorFlow has this setting"


def _errors(*, connector: dict[str, str] | None = None, source: dict[str, str] | None = None) -> list[str]:
    """Returns the errors of a flow with these entries in `config`."""
    document = {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": "east-to-west"},
        "spec": {
            "source": {"alias": "east", "bootstrapServers": ["kafka-east:9092"], "config": source or {}},
            "target": {"alias": "west", "bootstrapServers": ["kafka-west:9092"]},
            "connectors": {"source": {"config": connector or {}}},
        },
    }
    try:
        parse_flow(document)
    except InvalidSpecError as error:
        return [str(spec_error) for spec_error in error.errors]
    return []


def test_a_misspelled_connector_setting_is_refused_with_the_likely_name() -> None:
    assert _errors(connector={"ofset.lag.max": "5", "refresh.topics.interval.seconds": "60"}) == [
        f"spec.connectors.source.config[ofset.lag.max]: {UNKNOWN}; did you mean offset.lag.max?"
    ]


def test_an_unknown_setting_without_a_similar_one_is_refused_with_a_link_to_all_settings() -> None:
    [error] = _errors(connector={"acme.reporter.url": "http://acme"})

    assert error.endswith(f"{UNKNOWN}; remove it; docs/settings.md lists those that have an effect.")


def test_a_misspelled_client_setting_is_refused() -> None:
    assert _errors(source={"consumer.isolation.leval": "read_committed", "client.rack": "a"}) == [
        f"spec.source.config[consumer.isolation.leval]: {UNKNOWN}; did you mean consumer.isolation.level?"
    ]


def test_a_misspelled_transform_setting_is_refused() -> None:
    router = {
        "transforms": "a",
        "transforms.a.type": "RegexRouter",
        "transforms.a.regex": "(.*)",
        "transforms.a.replacement": "x.$1",
    }

    [error] = _errors(connector={**router, "transforms.a.predicat": "internal"})

    assert error.startswith(f"spec.connectors.source.config[transforms.a.predicat]: {UNKNOWN}; ")


def test_a_transform_that_is_not_built_in_is_refused_with_one_error_for_its_class() -> None:
    mask = {"transforms": "a", "transforms.a.type": "com.example.Mask", "transforms.a.fields": "name"}

    [error] = _errors(connector=mask)

    assert "spec.connectors.source.config[transforms.a.type]: this transformation is a Java class" in error


@pytest.mark.parametrize(
    "name",
    sorted(
        {key.name.replace("*", "x") for key in KEYS if key.scope in CONNECTOR_SCOPES}
        | {f"source.consumer.{key.name}" for key in KEYS if key.scope is Scope.CLIENT}
        | {*SYNONYMS, "offset.storage.topic", "config.storage.topic", "group.id"}
    ),
)
def test_each_setting_of_mirrormaker_is_known(name: str) -> None:
    """A known setting may be refused because a field sets it, or because of its value."""
    unknown = [error for error in _errors(connector={name: "1"}) if UNKNOWN in error]

    assert field_of(name) is not None or not unknown
