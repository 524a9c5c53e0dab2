"""Settings for confluent-kafka are derived from Java's settings."""

import pytest

from mirrorflow_core.errors import RefusedSettingError
from mirrorflow_kafka.client.application_clients import application_settings

SERVERS = {"bootstrap.servers": "kafka:9092"}


def test_a_password_becomes_the_settings_of_librdkafka():
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    properties = {
        **SERVERS,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="app" password="secret";',
    }

    assert {
        **SERVERS,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "app",
        "sasl.password": "secret",
    } == application_settings(properties)


def test_the_host_name_of_a_broker_is_checked_unless_the_setting_is_empty():
    tls = {**SERVERS, "security.protocol": "SSL"}

    checked = application_settings(tls)
    unchecked = application_settings({**tls, "ssl.endpoint.identification.algorithm": ""})

    key = "ssl.endpoint.identification.algorithm"
    assert ("https", "none") == (checked[key], unchecked[key])


def test_a_login_by_token_is_refused_with_its_setting():
    properties = {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}

    with pytest.raises(RefusedSettingError, match=r"sasl\.mechanism is refused"):
        application_settings(properties)
