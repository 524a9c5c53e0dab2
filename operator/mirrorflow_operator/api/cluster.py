"""Types of one side of a flow: the addresses of the cluster, its TLS, and the flow's authentication.

The resource refers to Secrets and never contains one: a password is given by its `SecretKey`.
"""

from enum import Enum
from typing import Annotated

from pydantic import Field

from mirrorflow_operator.api.model import (
    LIST_MAX,
    LIST_SET,
    Address,
    Alias,
    ApiModel,
    DataKey,
    ObjectName,
    Properties,
)


class AuthenticationType(Enum):
    """How the flow authenticates to the cluster."""

    TLS = "Tls"
    PLAIN = "Plain"
    SCRAM_SHA_256 = "ScramSha256"
    SCRAM_SHA_512 = "ScramSha512"
    OAUTH_BEARER = "OAuthBearer"
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
    """The identity of the flow on this cluster; `rules.clusters` has the fields of each type."""

    type: AuthenticationType = Field(
        description="Authentication type: Tls, Plain, ScramSha256, ScramSha512, OAuthBearer or Custom."
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
    token_endpoint: Annotated[str, Field(max_length=2_048, pattern=r"^https?://\S+$")] | None = Field(
        None, description="URL of the token endpoint, for type OAuthBearer."
    )
    scope: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None, description="Scope to request, for type OAuthBearer."
    )
    sasl: bool = Field(True, description="Whether the mechanism is a SASL mechanism, for type Custom.")
    config: Properties = Field(
        default_factory=dict,
        description="Java client properties that start with sasl. or ssl., for type Custom. Values may "
        "contain references.",
    )


class ClusterSpec(ApiModel):
    """A Kafka cluster, as the flow connects to it."""

    alias: Alias = Field(
        description="Alias of the cluster in the names of topics and internal topics. Immutable."
    )
    bootstrap_servers: tuple[Address, ...] = Field(
        min_length=1,
        max_length=LIST_MAX,
        description="Addresses (host:port) of one or more brokers.",
        json_schema_extra=LIST_SET,
    )
    tls: Tls | None = Field(None, description="TLS settings. If absent, connections are not encrypted.")
    authentication: Authentication | None = Field(
        None, description="Authentication settings. If absent, the flow connects anonymously."
    )
    config: Properties = Field(
        default_factory=dict,
        description="Further Java client properties. The prefix consumer., producer. or admin. limits one to "
        "that client. Values may contain references. Security and bootstrap properties are "
        "refused.",
    )
