"""One side of a flow: where the cluster is, how to trust it, and who we are there.

Secrets are named, never held: `SecretKey` is all the resource knows of a password.
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
    """How the flow proves who it is."""

    TLS = "Tls"
    PLAIN = "Plain"
    SCRAM_SHA_256 = "ScramSha256"
    SCRAM_SHA_512 = "ScramSha512"
    OAUTH_BEARER = "OAuthBearer"
    CUSTOM = "Custom"


class SecretKey(ApiModel):
    """One key of a Secret in the flow's namespace."""

    secret_name: ObjectName = Field(description="The Secret's name.")
    key: DataKey = Field(description="The key in the Secret.")


class TrustedCertificate(ApiModel):
    """A PEM file with one or several certificate authorities."""

    secret_name: ObjectName | None = Field(None, description="The Secret that holds the PEM file.")
    config_map_name: ObjectName | None = Field(None, description="The ConfigMap that holds the PEM file.")
    key: DataKey = Field("ca.crt", description="The key in the Secret or ConfigMap.")


class TextSource(ApiModel):
    """A text that is no secret: written here, or in a Secret."""

    value: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None, description="The text itself."
    )
    secret_name: ObjectName | None = Field(None, description="The Secret that holds the text.")
    key: DataKey | None = Field(None, description="The key in the Secret.")


class CertificateAndKey(ApiModel):
    """A client certificate with its private key, both PEM, in one Secret."""

    secret_name: ObjectName = Field(description="The Secret's name.")
    certificate: DataKey = Field("tls.crt", description="The key of the certificate chain.")
    key: DataKey = Field("tls.key", description="The key of the private key (PKCS #8).")


class Tls(ApiModel):
    """Encrypt, and check the broker's certificate and name."""

    trusted_certificates: tuple[TrustedCertificate, ...] = Field(
        (), max_length=LIST_MAX, description="Authorities to trust; empty: those of the system."
    )
    verify_hostname: bool = Field(True, description="Whether the certificate must name the broker's host.")


class Authentication(ApiModel):
    """Who the flow is on this cluster; which fields belong to which type is checked by `validate`."""

    type: AuthenticationType = Field(
        description="Tls, Plain, ScramSha256, ScramSha512, OAuthBearer or Custom."
    )
    username: TextSource | None = Field(None, description="Plain and SCRAM: the user.")
    password: SecretKey | None = Field(None, description="Plain and SCRAM: the password.")
    certificate_and_key: CertificateAndKey | None = Field(None, description="Tls: the client's certificate.")
    client_id: TextSource | None = Field(None, description="OAuthBearer: the client's id.")
    client_secret: SecretKey | None = Field(None, description="OAuthBearer: the client's secret.")
    token_endpoint: Annotated[str, Field(max_length=2_048, pattern=r"^https?://\S+$")] | None = Field(
        None, description="OAuthBearer: the URL of the token endpoint."
    )
    scope: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None, description="OAuthBearer: the scope to ask for."
    )
    sasl: bool = Field(True, description="Custom: whether it is a SASL mechanism.")
    config: Properties = Field(
        default_factory=dict,
        description="Custom: Java's sasl.* and ssl.* client properties; references allowed.",
    )


class Cluster(ApiModel):
    """A Kafka cluster as the flow sees it."""

    alias: Alias = Field(description="Its name in topic names (Prefix) and internal topics; never changes.")
    bootstrap_servers: tuple[Address, ...] = Field(
        min_length=1,
        max_length=LIST_MAX,
        description="host:port of some brokers.",
        json_schema_extra=LIST_SET,
    )
    tls: Tls | None = Field(None, description="Absent: no encryption.")
    authentication: Authentication | None = Field(None, description="Absent: anonymous.")
    config: Properties = Field(
        default_factory=dict,
        description="Further Java client properties, with consumer., producer. or admin. in front for one client"
        " alone; references allowed; security and bootstrap keys are refused.",
    )
