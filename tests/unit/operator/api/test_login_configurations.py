"""A login configuration of authentication type Custom has a reference for each secret option."""

import pytest

from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.errors import InvalidSpecError

FLOW = """
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: east-to-west}}
spec:
  source:
    alias: east
    bootstrapServers: ["kafka-east:9093"]
    authentication:
      type: Custom
      config:
        sasl.jaas.config: >-
          {module} required {options};
  target: {{alias: west, bootstrapServers: ["kafka-west:9092"]}}
"""
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
AWS = "software.amazon.msk.auth.iam.IAMLoginModule"


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (PLAIN, 'username="${env:USER}" password="hunter2"'),
        (PLAIN, "username='${env:USER}' password = 'hunter2'"),
        (PLAIN, 'username="${env:USER}" password=hunter2'),
        (PLAIN, 'username="${env:USER}" password="${env:START}hunter2"'),
        (PLAIN, 'username="a" password="${env:PASSWORD}" key.password="hunter2"'),
        (PLAIN, 'username="a" password="$hunter2" key.password="${env:PASSWORD}"'),
        (OAUTH, 'oauth.client.id="a" oauth.client.assertion="hunter2"'),
        (OAUTH, 'clientId="${env:ID}" clientSecret="hunter2"'),
        (OAUTH, 'oauth.client.id="a" oauth.refresh.token="hunter2"'),
        (AWS, 'awsRoleAccessKeyId="${env:ID}" awsRoleSecretAccessKey="hunter2"'),
        (PLAIN, 'username="$ConnectionString" password="Endpoint=sb://hunter2/;SharedAccessKey=${env:KEY}"'),
    ],
)
def test_a_secret_option_in_plain_text_is_refused(module: str, options: str) -> None:
    with pytest.raises(InvalidSpecError) as raised:
        load_flow(FLOW.format(module=module, options=options))

    assert "[sasl.jaas.config]: it contains a secret in plain text" in str(raised.value)
    assert "write only a reference, such as ${dir:/path:key}" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (PLAIN, 'username="a" password="${dir:/mnt/mirrorflow/secrets/a:password}"'),
        (PLAIN, 'password=${env:PASSWORD} username="a"'),
        (PLAIN, "username=\"a\" password='${env:START}${env:END}'"),
        (PLAIN, 'username="${env:USER}" password=""'),
        (PLAIN, 'username="$ConnectionString" password="${dir:/mnt/vault:connection-string}"'),
        (OAUTH, 'clientId="a" clientSecret="${env:SECRET}" scope="kafka"'),
        (OAUTH, 'oauth.token.endpoint.uri="https://login/token" oauth.access.token.location="/var/secrets/t"'),
        (OAUTH, "unsecuredLoginStringClaim_sub='a'"),
        (AWS, 'awsRoleArn="arn:aws:iam::1:role/a"'),
        ("org.apache.kafka.common.security.scram.ScramLoginModule", 'username="${env:A}" password="${env:B}" tokenauth="true"'),
    ],
)  # fmt: skip
def test_options_without_a_secret_in_plain_text_are_accepted(module: str, options: str) -> None:
    load_flow(FLOW.format(module=module, options=options))
