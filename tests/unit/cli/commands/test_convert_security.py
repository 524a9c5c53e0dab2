"""Converts the security settings of a Java client to `tls` and `authentication`."""

from typing import Any

import pytest

from mirrorflow_cli.commands.convert import converted, yaml_text
from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.java_flow import ConversionFindings
from mirrorflow_operator.api.load import parse_flow

BASE = (
    "clusters = A, B\nA.bootstrap.servers = SSL://a:1, a2:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"
)
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="m" password="hunter2";'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
IAM = "software.amazon.msk.auth.iam.IAM"
IAM_MODULE = f"{IAM}LoginModule"
IAM_LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.login.callback.handler.class": f"{IAM}OAuthBearerLoginCallbackHandler",
    "sasl.client.callback.handler.class": f"{IAM}OAuthBearerLoginCallbackHandler",
    "sasl.jaas.config": f"{OAUTH};",
}
IAM_MECHANISM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.client.callback.handler.class": f"{IAM}ClientCallbackHandler",
    "sasl.jaas.config": f"{IAM_MODULE} required;",
}
AZURE = "com.azure.spring.cloud.service.implementation.kafka.KafkaOAuth2AuthenticateCallbackHandler"
ROLE = "arn:aws:iam::123456789012:role/mirror"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def source(lines: dict[str, str], findings: ConversionFindings | None = None) -> dict[str, Any]:
    """Returns spec.source of the flow whose cluster A has *lines*. It is valid and contains no secret."""
    text = BASE + "".join(f"A.{key} = {value}\n" for key, value in lines.items())
    document = converted(text, findings or ConversionFindings())[0]
    parse_flow(document)
    assert "hunter2" not in yaml_text(document)
    return dict(document["spec"]["source"])


@pytest.mark.parametrize(
    ("lines", "tls", "authentication"),
    [
        ({}, None, None),
        ({"security.protocol": "SSL"}, {}, None),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""},
            {"verifyHostname": False},
            None,
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----"},
            {"trustedCertificates": [{"secretName": "a-ca", "key": "ca.crt"}]},
            None,
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.keystore.location": "/etc/a.p12",
                "ssl.keystore.password": "hunter2",
                "ssl.key.password": "hunter2",
            },
            {},
            {"type": "Tls", "certificateAndKey": {"secretName": "a-client"}},
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": SCRAM,
            },
            None,
            {
                "type": "ScramSha256",
                "username": {"value": "m"},
                "password": {"secretName": "a-mirror", "key": "password"},
            },
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.login.callback.handler.class": HANDLER,
                "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
                "sasl.jaas.config": f'{OAUTH} clientId="mirror" clientSecret="hunter2" scope="kafka";',
            },
            {},
            {
                "type": "OAuthBearer",
                "clientId": {"value": "mirror"},
                "clientSecret": {"secretName": "a-mirror", "key": "client-secret"},
                "tokenEndpoint": "https://login.example.com/token",
                "scope": "kafka",
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"},
            {},
            {"type": "Custom", "sasl": False, "config": {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}},
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": SCRAM,
                "ssl.enabled.protocols": "TLSv1.3",
            },
            {},
            {
                "type": "Custom",
                "sasl": True,
                "config": {
                    "ssl.enabled.protocols": "TLSv1.3",
                    "sasl.mechanism": "SCRAM-SHA-512",
                    "sasl.jaas.config": SCRAM.replace(
                        "hunter2", "${dir:/mnt/mirrorflow/secrets/a-mirror:password}"
                    ),
                },
            },
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "${file:/x:jaas}",
            },
            {},
            {
                "type": "Custom",
                "sasl": True,
                "config": {
                    "sasl.mechanism": "PLAIN",
                    "sasl.jaas.config": "${dir:/mnt/mirrorflow/secrets/a-mirror:sasl.jaas.config}",
                },
            },
        ),
    ],
    ids=[
        "no security",
        "system authorities",
        "no hostname verification",
        "authorities in the file",
        "client certificate",
        "password",
        "token",
        "cipher suites",
        "password and TLS protocol",
        "login by reference",
    ],
)
def test_security_settings_become_fields(
    lines: dict[str, str], tls: dict[str, Any] | None, authentication: dict[str, Any] | None
) -> None:
    """The type Custom is used only if no named type is sufficient."""
    converted_source = source(lines)

    assert ["a:1", "a2:1"] == converted_source["bootstrapServers"]
    assert (tls, authentication) == (converted_source.get("tls"), converted_source.get("authentication"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({"security.protocol": "SASL_SSL"}, "GSSAPI is not supported"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": f'{IAM_MODULE} required awsProfileName="prod";',
            },
            "export-credentials",
        ),
        (
            {"security.protocol": "SSL", "ssl.engine.factory.class": "com.example.X"},
            "ssl.engine.factory.class",
        ),
    ],
)
def test_an_unsupported_security_setting_is_refused(lines: dict[str, str], expected: str) -> None:
    """The converted flow could not connect."""
    with pytest.raises(UsageError, match=expected):
        source(lines)


def test_every_secret_option_of_a_login_module_becomes_a_reference() -> None:
    """Strimzi's client has a password of its truststore, and Java's own modules take options that they do not know."""
    options = (
        'oauth.client.id="mirror" oauth.client.secret="hunter2" oauth.token.endpoint.uri="https://login.example.com/token"'
        ' oauth.ssl.truststore.location="/certs/ca.p12" oauth.ssl.truststore.password="hunter2"'
    )
    own = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler",
        "sasl.jaas.config": f"{OAUTH} {options};",
    }
    jaas = source(own)["authentication"]["config"]["sasl.jaas.config"]
    assert 'ssl.truststore.password="${dir:/mnt/mirrorflow/secrets/a-mirror:ssl.truststore.password}"' in jaas
    assert 'ssl.truststore.location="/certs/ca.p12"' in jaas

    names = ("api.token", "refreshToken", "privateKey", "key.passphrase", "client.assertion", "myPassword")
    plain = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": " ".join([PLAIN, *(f'{name}="hunter2"' for name in names)])
        + ' token.endpoint="https://login.example.com";',
    }
    jaas = source(plain)["authentication"]["config"]["sasl.jaas.config"]
    assert 'token.endpoint="https://login.example.com"' in jaas


@pytest.mark.parametrize("login", [IAM_LOGIN, IAM_MECHANISM], ids=["OAUTHBEARER", "AWS_MSK_IAM"])
def test_javas_login_to_msk_becomes_type_aws_iam(login: dict[str, str]) -> None:
    """It names no Secret. Options of aws-msk-iam-auth without effect are listed."""
    findings = ConversionFindings()
    module = login["sasl.jaas.config"].rstrip(";")
    options = f'{module} awsRoleArn="{ROLE}" awsDebugCreds="true" awsMaxRetries="3";'

    plain = source(login)
    with_role = source(login | {"sasl.jaas.config": options}, findings)

    assert (plain["tls"], plain["authentication"]) == ({}, {"type": "AwsIam"})
    assert with_role["authentication"] == {"type": "AwsIam", "roleArn": ROLE}
    assert not findings.secrets
    assert {loss.setting for loss in findings.losses} == {
        "A.sasl.jaas.config (option awsDebugCreds)",
        "A.sasl.jaas.config (option awsMaxRetries)",
    }


@pytest.mark.parametrize(
    ("handler", "further", "authentication"),
    [
        ("com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler", {}, {"type": "GcpWorkloadIdentity"}),
        (AZURE, {}, {"type": "AzureWorkloadIdentity"}),
        (
            AZURE,
            {"sasl.oauthbearer.scope": "api://app/.default"},
            {"type": "AzureWorkloadIdentity", "scope": "api://app/.default"},
        ),
    ],
    ids=["Google", "Azure", "Azure with a scope"],
)
def test_javas_login_to_other_clouds_becomes_their_type(
    handler: str, further: dict[str, str], authentication: dict[str, str]
) -> None:
    findings = ConversionFindings()
    own = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": handler,
        "sasl.jaas.config": f"{OAUTH};",
    }
    assert source(own | further, findings)["authentication"] == authentication
    assert not findings.secrets


def test_strimzis_oauth_client_becomes_type_oauth_bearer() -> None:
    options = (
        'oauth.client.id="mirror" oauth.client.secret="hunter2" oauth.scope="kafka"'
        ' oauth.token.endpoint.uri="https://login.example.com/token"'
    )
    own = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler",
        "sasl.jaas.config": f"{OAUTH} {options};",
    }
    assert source(own)["authentication"] == {
        "type": "OAuthBearer",
        "clientId": {"value": "mirror"},
        "clientSecret": {"secretName": "a-mirror", "key": "client-secret"},
        "tokenEndpoint": "https://login.example.com/token",
        "scope": "kafka",
    }
    with pytest.raises(UsageError, match="other grants"):
        source(own | {"sasl.jaas.config": f'{OAUTH} oauth.refresh.token="hunter2";'})


@pytest.mark.parametrize("login", [IAM_LOGIN, IAM_MECHANISM], ids=["OAUTHBEARER", "AWS_MSK_IAM"])
def test_further_options_of_a_login_to_msk_need_type_custom(login: dict[str, str]) -> None:
    """The replicator reads these options. Keys become references to a Secret."""
    module = login["sasl.jaas.config"].rstrip(";")
    options = f'{module} awsRoleArn="{ROLE}" awsStsRegion="eu-west-1" awsRoleSecretAccessKey="hunter2";'

    authentication = source(login | {"sasl.jaas.config": options})["authentication"]

    assert authentication["type"] == "Custom"
    assert authentication["config"]["sasl.mechanism"] == login["sasl.mechanism"]
    assert 'awsStsRegion="eu-west-1"' in authentication["config"]["sasl.jaas.config"]
    assert (
        "${dir:/mnt/mirrorflow/secrets/a-mirror:awsRoleSecretAccessKey}"
        in authentication["config"]["sasl.jaas.config"]
    )


def test_settings_of_an_unused_protocol_are_listed() -> None:
    """Java ignores them as well."""
    findings = ConversionFindings()
    source({"ssl.enabled.protocols": "TLSv1.3", "sasl.mechanism": "PLAIN"}, findings)

    assert {"A.ssl.enabled.protocols"} == {loss.setting for loss in findings.losses}


def test_references_in_settings_without_secrets_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """MM2 resolves them when it starts. A reference that cannot be resolved is listed and left out."""
    monkeypatch.setenv("MM_TEST_TOPICS", "orders, payments")
    findings = ConversionFindings()
    providers = (
        "config.providers = env\n"
        "config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
    )
    text = (
        BASE + providers + "topics = ${env:MM_TEST_TOPICS}\nA.consumer.client.rack = ${env:MM_TEST_NOWHERE}\n"
    )

    spec = converted(text, findings)[0]["spec"]

    assert ["orders", "payments"] == spec["topics"]["include"]
    assert "config" not in spec["source"]
    assert ["A.consumer.client.rack"] == [loss.setting for loss in findings.losses]
