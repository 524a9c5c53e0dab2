"""Defines how clients log in to a Kafka cluster or a schema registry, and how they verify it: authentication and TLS.

A MirrorFlow and the probes of a MirrorPair share these types. A resource refers to Secrets and never contains one, so a
password is given by its `SecretKey`.
"""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import LIST_MAX, ApiModel, DataKey, ObjectName, Properties

AWS_REGION = r"^[a-z]{2}(-[a-z]+)+-[0-9]+$"
ABSOLUTE_PATH = r"^/\S+$"
AWS_ROLE = r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+$"


class AuthenticationType(Enum):
    """How the flow authenticates to the cluster."""

    TLS = "Tls"
    PLAIN = "Plain"
    SCRAM_SHA_256 = "ScramSha256"
    SCRAM_SHA_512 = "ScramSha512"
    OAUTH_BEARER = "OAuthBearer"
    AWS_IAM = "AwsIam"
    GCP_WORKLOAD_IDENTITY = "GcpWorkloadIdentity"
    AZURE_WORKLOAD_IDENTITY = "AzureWorkloadIdentity"
    CUSTOM = "Custom"


class SecretKey(ApiModel):
    """One key of a Secret in the flow's namespace."""

    secret_name: ObjectName = Field(description="Name of the Secret.")
    key: DataKey = Field(description="Key in the Secret.")


class TrustedCertificate(ApiModel):
    """A PEM file with one or more certificate authorities."""

    secret_name: ObjectName | None = Field(None, description="Name of the Secret that contains the PEM file.")
    config_map_name: ObjectName | None = Field(
        None, description="Name of the ConfigMap that contains the PEM file."
    )
    key: DataKey = Field("ca.crt", description="Key in the Secret or ConfigMap.")


class TextSource(ApiModel):
    """A value that is not secret: written here, or taken from a Secret."""

    value: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None, description="The value itself."
    )
    secret_name: ObjectName | None = Field(None, description="Name of the Secret that contains the value.")
    key: DataKey | None = Field(None, description="Key in the Secret.")


class CertificateAndKey(ApiModel):
    """A client certificate and its private key, both PEM, in one Secret."""

    secret_name: ObjectName = Field(description="Name of the Secret.")
    certificate: DataKey = Field("tls.crt", description="Key of the certificate chain in the Secret.")
    key: DataKey = Field("tls.key", description="Key of the private key (PKCS #8) in the Secret.")


class ClientAssertion(ApiModel):
    """A signed JWT by which the client authenticates at the token endpoint."""

    file: Annotated[str, Field(max_length=1_024, pattern=ABSOLUTE_PATH)] = Field(
        description="File with the current assertion, such as a projected token. For a key of "
        "a Secret: /mnt/mirrorflow/secrets/<name>/<key>."
    )


class Tls(ApiModel):
    """Encryption, and verification of the brokers."""

    trusted_certificates: tuple[TrustedCertificate, ...] = Field(
        (),
        max_length=LIST_MAX,
        description="Certificate authorities to trust. If empty, those of the system are trusted.",
    )
    verify_hostname: bool = Field(
        True, description="Whether a broker's certificate must contain its host name."
    )


class Authentication(ApiModel):
    """The identity of the flow on this cluster; `rules.table` has the fields of each type."""

    type: AuthenticationType = Field(
        description="Authentication type: Tls, Plain, ScramSha256, ScramSha512, OAuthBearer, "
        "AwsIam or Custom."
    )
    username: TextSource | None = Field(
        None, description="User name, for types Plain, ScramSha256 and ScramSha512."
    )
    password: SecretKey | None = Field(
        None, description="Password, for types Plain, ScramSha256 and ScramSha512."
    )
    certificate_and_key: CertificateAndKey | None = Field(
        None, description="Client certificate and private key, for type Tls."
    )
    client_id: TextSource | None = Field(None, description="Client id, for type OAuthBearer.")
    client_secret: SecretKey | None = Field(None, description="Client secret, for type OAuthBearer.")
    client_assertion: ClientAssertion | None = Field(
        None, description="Client assertion (RFC 7523) instead of a client secret, for type OAuthBearer."
    )
    token_endpoint: Annotated[str, Field(max_length=2_048, pattern=r"^https?://\S+$")] | None = Field(
        None, description="URL of the token endpoint, for type OAuthBearer."
    )
    scope: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None,
        description="Scope to request, for types OAuthBearer and AzureWorkloadIdentity. The latter's default is "
        "the Event Hubs namespace in the addresses.",
    )
    region: Annotated[str, Field(max_length=32, pattern=AWS_REGION)] | None = Field(
        None,
        description="AWS region of the MSK cluster, for type AwsIam. If absent, the region in the brokers' "
        "addresses, else that of the pod.",
    )
    role_arn: Annotated[str, Field(max_length=2_048, pattern=AWS_ROLE)] | None = Field(
        None,
        description="ARN of a role that the identity of the pod assumes, for type AwsIam.",
    )
    sasl: bool = Field(True, description="Whether the mechanism is a SASL mechanism, for type Custom.")
    config: Properties = Field(
        default_factory=dict,
        description="Java client properties that start with sasl. or ssl., for type Custom. Values may "
        "contain references.",
    )


class RegistryAuthenticationType(Enum):
    """How the flow authenticates to a schema registry."""

    BASIC = "Basic"
    BEARER = "Bearer"


class RegistryAuthentication(ApiModel):
    """The identity of the flow on a schema registry."""

    type: RegistryAuthenticationType = Field(description="Authentication type: Basic or Bearer.")
    username: TextSource | None = Field(None, description="User name, for type Basic.")
    password: SecretKey | None = Field(None, description="Password, for type Basic.")
    token: SecretKey | None = Field(None, description="Bearer token, for type Bearer.")
