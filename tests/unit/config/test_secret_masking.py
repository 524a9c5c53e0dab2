"""Secrets of a configuration are hidden in output; all other values are shown unchanged."""

import pytest

from mirrorflow_replicator.config.providers import HIDDEN, shown_value

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize(
    "key",
    [
        "ssl.key.password", "source.cluster.ssl.keystore.password", "target.admin.ssl.truststore.password",
        "producer.ssl.keystore.key", "sasl.oauthbearer.client.credentials.client.secret", "listeners.https.ssl.key.password",
        "source.cluster.basic.auth.user.info", "password",
    ],
)  # fmt: skip
def test_secrets_are_hidden_with_any_key_prefix(key: str) -> None:
    """The last part of the key decides. A reference is not a secret."""
    assert HIDDEN == shown_value(key, "hunter2")
    assert HIDDEN == shown_value(key, "hunter2${env:REST}")
    assert "${dir:/secrets:password}" == shown_value(key, "${dir:/secrets:password}")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (f'{SCRAM} username="me" password="hunter2";', f'{SCRAM} username="me" password="[hidden]";'),
        (f"{SCRAM} password='hunter2' username=me;", f'{SCRAM} password="[hidden]" username=me;'),
        (f"{SCRAM} username=me password=hunter2;", f'{SCRAM} username=me password="[hidden]";'),
        (f'{SCRAM} password="a\\"hunter2" x="y";', f'{SCRAM} password="[hidden]" x="y";'),
        (f'{SCRAM} clientId="me" clientSecret="hunter2";', f'{SCRAM} clientId="me" clientSecret="[hidden]";'),
        (
            f'{SCRAM} oauth.client.assertion="hunter2" oauth.client.assertion.type="jwt";',
            f'{SCRAM} oauth.client.assertion="[hidden]" oauth.client.assertion.type="jwt";',
        ),
        ("hunter2", HIDDEN),
        (f'{SCRAM} username="me" password="hunter2"', HIDDEN),
        (f'{SCRAM} username="me" password="hunter2;', HIDDEN),
        ("${dir:/s:jaas}", "${dir:/s:jaas}"),
        (f'{SCRAM} password="${{dir:/s:p}}";', f'{SCRAM} password="${{dir:/s:p}}";'),
    ],
)
def test_only_secret_options_of_a_jaas_configuration_are_hidden(value: str, shown: str) -> None:
    assert shown == shown_value("target.cluster.sasl.jaas.config", value)


@pytest.mark.parametrize(
    "key", ["bootstrap.servers", "topics", "ssl.keystore.location", "sasl.mechanism", "offset.storage.topic"]
)
def test_other_values_are_shown(key: str) -> None:
    assert "value" == shown_value(key, "value")


def test_the_password_of_a_url_is_hidden() -> None:
    key = "source.cluster.schema.registry.url"

    assert "https://[hidden]@a:8081,https://b" == shown_value(key, "https://me:hunter2@a:8081,https://b")
    assert "https://[hidden]@a" == shown_value("sasl.oauthbearer.token.endpoint.url", "https://me:hunt@er2@a")
    assert "https://${env:ME}:${env:KEY}@a" == shown_value(key, "https://${env:ME}:${env:KEY}@a")
    assert "https://a/path@1" == shown_value(key, "https://a/path@1")
