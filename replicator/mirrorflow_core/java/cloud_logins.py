"""Names the Java classes by which a Kafka client logs in with an identity of a cloud, and reads what they are given.

Sources: aws-msk-iam-auth (README), Google's managedkafka, spring-cloud-azure.
"""

from collections.abc import Mapping

from mirrorflow_core.errors import RefusedSettingError
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_core.java.properties import has_reference

OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LOGIN_HANDLER_KEY = "sasl.login.callback.handler.class"
SCOPE_KEY = "sasl.oauthbearer.scope"
CLIENT_HANDLER_KEY = "sasl.client.callback.handler.class"
# aws-msk-iam-auth: its handler of OAUTHBEARER, and its own mechanism with module and handler.
_AWS = "software.amazon.msk.auth.iam."
AWS_HANDLER = f"{_AWS}IAMOAuthBearerLoginCallbackHandler"
AWS_CLIENT_HANDLERS = frozenset({AWS_HANDLER, f"{_AWS}IAMClientCallbackHandler"})
AWS_MECHANISM = "AWS_MSK_IAM"
AWS_MODULE = f"{_AWS}IAMLoginModule"
# Requests are retried by sasl.login.retry.*, and no identity is logged.
AWS_IGNORED_OPTIONS = frozenset({"awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs"})
AWS_SECRET_OPTIONS = frozenset({"awsRoleSecretAccessKey", "awsRoleSessionToken"})
GCP_HANDLER = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"
AZURE_HANDLER = "com.azure.spring.cloud.service.implementation.kafka.KafkaOAuth2AuthenticateCallbackHandler"
# Strimzi's OAuth client: an option of its login module -> the property of Kafka's own handler with the same meaning.
STRIMZI_HANDLER = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
_STRIMZI_OPTIONS = {
    "oauth.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "oauth.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
    "oauth.token.endpoint.uri": "sasl.oauthbearer.token.endpoint.url",
    "oauth.access.token.location": "sasl.oauthbearer.token.endpoint.url",
    "oauth.scope": SCOPE_KEY,
    "oauth.client.assertion.location": "sasl.oauthbearer.assertion.file",
    "oauth.ssl.truststore.location": "ssl.truststore.location",
    "oauth.ssl.truststore.certificates": "ssl.truststore.certificates",
    "oauth.ssl.truststore.password": "ssl.truststore.password",
    "oauth.ssl.truststore.type": "ssl.truststore.type",
}
# They change no request and no token: timeouts and retries are those of sasl.login.*.
_STRIMZI_IGNORED = frozenset(
    {
        "oauth.access.token.is.jwt", "oauth.client.assertion.type", "oauth.connect.timeout.seconds",
        "oauth.read.timeout.seconds", "oauth.http.retries", "oauth.http.retry.pause.millis", "oauth.enable.metrics",
        "oauth.max.token.expiry.seconds", "oauth.username.claim", "oauth.fallback.username.claim",
        "oauth.fallback.username.prefix", "oauth.include.accept.header",
    }
)  # fmt: skip
STRIMZI_GRANTS_REFUSED = (
    "Strimzi's other grants are not offered; use a client secret, an assertion or a file with a token"
)
PROFILES_REFUSED = (
    "AWS profiles are not read: give the pod's ServiceAccount a role, or run "
    'eval "$(aws configure export-credentials --format env)" first'
)
# For topics, groups and the cluster: Kafka's operation -> the action of an IAM policy (MSK's developer guide).
_IAM_ACTIONS = {
    "topic": {
        "Read": "ReadData",
        "Write": "WriteData",
        "Create": "CreateTopic",
        "Describe": "DescribeTopic",
        "Alter": "AlterTopic",
        "DescribeConfigs": "DescribeTopicDynamicConfiguration",
        "AlterConfigs": "AlterTopicDynamicConfiguration",
    },
    "group": {"Read": "AlterGroup", "Describe": "DescribeGroup"},
    "the": {"Describe": "DescribeCluster", "Alter": "AlterCluster", "Create": "CreateTopic"},
}
# Expressed by the type of authentication alone.
_EXPRESSED = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    LOGIN_HANDLER_KEY,
    CLIENT_HANDLER_KEY,
}
_AWS_FIELDS = {"awsRegion": "region", "awsRoleArn": "roleArn"}


def is_aws_iam(properties: Mapping[str, str]) -> bool:
    """Returns whether *properties* log in to MSK by IAM."""
    mechanism = properties.get("sasl.mechanism", "").strip()
    return mechanism == AWS_MECHANISM or (
        mechanism == "OAUTHBEARER" and properties.get(LOGIN_HANDLER_KEY, "") == AWS_HANDLER
    )


def strimzi_login(
    properties: Mapping[str, str], options: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns *properties* and *options* of Strimzi's OAuth client as those of Kafka's own handler.

    Raises RefusedSettingError for an option with another grant, such as a refresh token or a password.
    """
    own, kept = dict(properties), {}
    del own[LOGIN_HANDLER_KEY]
    for name, value in options.items():
        if name in _STRIMZI_IGNORED or not name.startswith("oauth."):
            continue
        if name not in _STRIMZI_OPTIONS:
            raise RefusedSettingError(
                key=f"{JAAS} (option {name})",
                why=STRIMZI_GRANTS_REFUSED,
            )
        key = _STRIMZI_OPTIONS[name]
        if name == "oauth.access.token.location":
            own[key] = f"file://{value}"
        elif key.startswith("ssl."):
            kept[key] = value
        else:
            own[key] = value
    return own, kept


def names_cloud_identity(properties: Mapping[str, str]) -> bool:
    """Returns whether *properties* log in by the identity of a cloud."""
    return is_aws_iam(properties) or properties.get(LOGIN_HANDLER_KEY, "") in {GCP_HANDLER, AZURE_HANDLER}


def iam_action(operation: str, resource: str) -> str | None:
    """Returns the action of an IAM policy for Kafka's *operation* on *resource*, as errors name them; None if unknown."""
    action = _IAM_ACTIONS.get(resource.partition(" ")[0], {}).get(operation)
    return None if action is None else f"kafka-cluster:{action}"


def cloud_authentication(properties: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str] | None:
    """Returns `authentication` of a MirrorFlow for a login by a cloud's identity.

    None if *properties* (unprefixed) are no such login, or have with the login module's *options* more than its type can express.
    """
    further = {key for key, value in properties.items() if value} - _EXPRESSED
    handler = properties.get(LOGIN_HANDLER_KEY, "")
    given, fields = dict(options), _AWS_FIELDS
    if is_aws_iam(properties):
        kind = "AwsIam"
        given = {name: value for name, value in options.items() if name not in AWS_IGNORED_OPTIONS}
    elif handler == GCP_HANDLER:
        kind, fields = "GcpWorkloadIdentity", {}
    elif handler == AZURE_HANDLER:
        kind, fields = "AzureWorkloadIdentity", {"scope": "scope"}
        given = {name: value for name, value in options.items() if name != "azure.configured"}
        if scope := properties.get(SCOPE_KEY, ""):
            further, given = further - {SCOPE_KEY}, given | {"scope": scope}
    else:
        return None
    if further or given.keys() - fields.keys() or any(map(has_reference, given.values())):
        return None
    return {"type": kind, **{fields[name]: value for name, value in given.items()}}
