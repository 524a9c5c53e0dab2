"""The table of known settings, and the page that is generated from it."""

from pathlib import Path

import pytest

from mirrorflow_core import setting_table
from mirrorflow_core.java.security_keys import SECURITY_KEYS
from mirrorflow_core.setting_table import Scope, Verdict

ROOT = Path(__file__).parents[3]


def test_the_settings_page_is_up_to_date():
    """`python -m mirrorflow_core.setting_table > docs/settings.md` generates it."""
    assert (ROOT / "docs" / "settings.md").read_text() == setting_table.document()


def test_each_key_has_one_verdict_and_a_reason():
    """No key occurs twice in a scope, and each refused or ignored key has a reason."""
    names = [(key.scope, key.name) for key in setting_table.KEYS]

    assert len(set(names)) == len(names)
    assert [
        key.name for key in setting_table.KEYS if not key.note and key.verdict is not Verdict.HONOURED
    ] == []
    assert [key.name for key in setting_table.KEYS if "|" in key.note] == []


def test_security_keys_have_the_same_verdicts_in_both_tables():
    rows = {key.name: key.verdict.value for key in setting_table.KEYS if key.scope is Scope.CLIENT}

    assert {name: text.partition(":")[0] for name, text in SECURITY_KEYS.items()} == {
        name: rows[name] for name in SECURITY_KEYS
    }


@pytest.mark.parametrize(
    ("name", "scopes", "verdict"),
    [
        ("topics", setting_table.CONNECTOR_SCOPES, Verdict.HONOURED),
        ("source.consumer.isolation.level", setting_table.CONNECTOR_SCOPES, Verdict.HONOURED),
        ("producer.override.linger.ms", setting_table.CONNECTOR_SCOPES, Verdict.IGNORED),
        ("target.producer.acks", setting_table.CONNECTOR_SCOPES, Verdict.MAPPED),
        ("offset.storage.kafka.topic", setting_table.WORKER_SCOPES, Verdict.HONOURED),
        ("transforms.a.type", setting_table.CONNECTOR_SCOPES, Verdict.HONOURED),
        ("producer.ssl.key.password", setting_table.WORKER_SCOPES, Verdict.HONOURED),
    ],
)
def test_keys_are_found_with_prefixes_and_by_wildcard_rows(
    name: str, scopes: tuple[Scope, ...], verdict: Verdict
):
    entry = setting_table.find(name, scopes)

    assert entry is not None
    assert verdict is entry.verdict


@pytest.mark.parametrize("name", ["topic", "source.consumer.nonsense", "consumer", "A->B.topics", ""])
def test_unknown_keys_are_not_found(name: str):
    assert setting_table.find(name, setting_table.CONNECTOR_SCOPES) is None


def test_keys_of_an_unlisted_transformation_cause_a_warning():
    """As in Java, the keys have no effect, which is rarely intended."""
    warnings: list[str] = []
    lines = {"transforms": "route", "transforms.route.regex": "a", "transforms.rout.replacement": "b"}

    setting_table.check(lines, setting_table.CONNECTOR_SCOPES, warnings)

    assert len(warnings) == 1
    assert warnings[0].endswith(": transforms.rout.replacement.")


@pytest.mark.parametrize(
    ("name", "scopes", "place"),
    [
        ("isolation.level", setting_table.CONNECTOR_SCOPES, "source.consumer.isolation.level"),
        ("source.cluster.client.rack", setting_table.CONNECTOR_SCOPES, "source.consumer.client.rack"),
        (
            "source.cluster.consumer.isolation.level",
            setting_table.CONNECTOR_SCOPES,
            "source.consumer.isolation.level",
        ),
        (
            "consumer.override.auto.offset.reset",
            setting_table.CONNECTOR_SCOPES,
            "source.consumer.auto.offset.reset",
        ),
        (
            "transaction.timeout.ms",
            setting_table.CONNECTOR_SCOPES,
            "producer.override.transaction.timeout.ms",
        ),
        ("auto.offset.reset", setting_table.CLUSTER_SCOPES, "consumer.auto.offset.reset"),
        ("source.consumer.isolation.level", setting_table.CLUSTER_SCOPES, "consumer.isolation.level"),
        ("transaction.timeout.ms", setting_table.CLUSTER_SCOPES, "producer.transaction.timeout.ms"),
        ("transaction.timeout.ms", setting_table.WORKER_SCOPES, "producer.transaction.timeout.ms"),
        (
            "consumer.isolation.level",
            setting_table.WORKER_SCOPES,
            "source.consumer.isolation.level into the connector",
        ),
    ],
)
def test_a_setting_of_a_client_that_reaches_no_client_causes_a_warning_with_its_place(
    name: str, scopes: tuple[Scope, ...], place: str
) -> None:
    """Java ignores it silently, and copies for example records of aborted transactions."""
    warnings: list[str] = []

    setting_table.check({name: "x"}, scopes, warnings)

    assert [f"{name}: it has no effect there, as in Java; write {place}."] == warnings


def test_a_setting_of_a_client_in_its_place_causes_no_warning() -> None:
    """A MirrorFlow's `config` of a cluster is written for each kind of client."""
    warnings: list[str] = []
    connector = [
        "consumer.isolation.level", "source.consumer.client.rack", "target.consumer.client.id", "admin.client.id",
        "target.producer.transaction.timeout.ms", "producer.override.transaction.timeout.ms", "producer.override.client.id",
        "source.cluster.bootstrap.servers", "source.admin.client.rack", "ssl.truststore.location", "sasl.mechanism",
    ]  # fmt: skip
    cluster = [
        "client.id",
        "consumer.auto.offset.reset",
        "producer.transaction.timeout.ms",
        "admin.client.id",
    ]
    worker = ["client.id", "producer.client.id", "producer.transaction.timeout.ms", "bootstrap.servers"]
    for names, scopes in (
        (connector, setting_table.CONNECTOR_SCOPES),
        (cluster, setting_table.CLUSTER_SCOPES),
        (worker, setting_table.WORKER_SCOPES),
    ):
        setting_table.check(dict.fromkeys(names, "x"), scopes, warnings)

    assert [] == warnings
