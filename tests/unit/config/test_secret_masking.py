"""What is shown of a configuration: no secret in plain text, and everything else as it is."""

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
def test_secrets_are_hidden_behind_any_prefix(key: str) -> None:
    """By the last part of the key; a reference is no secret."""
    assert HIDDEN == shown_value(key, "hunter2")
    assert HIDDEN == shown_value(key, "hunter2${env:REST}")
    assert "${dir:/secrets:password}" == shown_value(key, "${dir:/secrets:password}")


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (f'{SCRAM} username="me" password="hunter2";', f'{SCRAM} username="me" password="[hidden]";'),
        (f"{SCRAM} password='hunter2' username=me;", f'{SCRAM} password="[hidden]" username=me;'),
        (f"{SCRAM} username=me password=hunter2;", f'{SCRAM} username=me password="[hidden]";'),
        (f'{SCRAM} password="a\\"hunter2" x="y";', f'{SCRAM} password="[hidden]" x="y";'),
        (f'{SCRAM} clientId="me" clientSecret="hunter2";', f'{SCRAM} clientId="me" clientSecret="[hidden]";'),
        ("hunter2", HIDDEN),
        (f'{SCRAM} username="me" password="hunter2"', HIDDEN),
        (f'{SCRAM} username="me" password="hunter2;', HIDDEN),
        ("${dir:/s:jaas}", "${dir:/s:jaas}"),
        (f'{SCRAM} password="${{dir:/s:p}}";', f'{SCRAM} password="${{dir:/s:p}}";'),
    ],
)
def test_of_a_login_configuration_only_the_secret_options_are_hidden(written: str, seen: str) -> None:
    """Who it is may be read."""
    assert seen == shown_value("target.cluster.sasl.jaas.config", written)


@pytest.mark.parametrize(
    "key", ["bootstrap.servers", "topics", "ssl.keystore.location", "sasl.mechanism", "offset.storage.topic"]
)
def test_the_rest_is_shown(key: str) -> None:
    """As it is."""
    assert "value" == shown_value(key, "value")
