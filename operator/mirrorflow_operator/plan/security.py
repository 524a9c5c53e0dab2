"""Encryption and authentication of a cluster in Java's property names; every secret is a reference.

PEM throughout (KIP-651), so a Secret of cert-manager, Strimzi or `kubectl create secret tls` serves as it is. Who the flow
is, is `authentication`'s.
"""

from mirrorflow_operator.api.cluster import (
    Authentication,
    AuthenticationType,
    Cluster,
    TrustedCertificate,
)
from mirrorflow_operator.plan.authentication import identity_properties
from mirrorflow_operator.plan.layout import SecretLayout


def security_properties(cluster: Cluster, layout: SecretLayout) -> dict[str, str]:
    """`security.protocol` and all that belongs to it; empty for a plain-text cluster without authentication."""
    encrypted = cluster.tls is not None
    sasl = _is_sasl(cluster.authentication)
    if not encrypted and cluster.authentication is None:
        return {}
    protocol = ("SASL_" if sasl else "") + ("SSL" if encrypted else "PLAINTEXT")
    properties = {"security.protocol": protocol}
    if cluster.tls is not None:
        properties |= _trust(cluster.tls.trusted_certificates, layout)
        if not cluster.tls.verify_hostname:
            properties["ssl.endpoint.identification.algorithm"] = ""
    if cluster.authentication is not None:
        properties |= identity_properties(cluster.authentication, layout)
    return properties


def _is_sasl(authentication: Authentication | None) -> bool:
    if authentication is None or authentication.type is AuthenticationType.TLS:
        return False
    return authentication.type is not AuthenticationType.CUSTOM or authentication.sasl


def _trust(certificates: tuple[TrustedCertificate, ...], layout: SecretLayout) -> dict[str, str]:
    if not certificates:
        return {}
    if len(certificates) == 1:
        return {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": _trusted_path(certificates[0], layout),
        }
    # A truststore is one file or one text; several files become one text, each ended by a line break of its own.
    texts = [_trusted_reference(certificate, layout) for certificate in certificates]
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "\n".join(texts)}


def _trusted_path(certificate: TrustedCertificate, layout: SecretLayout) -> str:
    if certificate.secret_name is not None:
        return layout.secret_path(certificate.secret_name, certificate.key)
    return layout.config_map_path(certificate.config_map_name or "", certificate.key)


def _trusted_reference(certificate: TrustedCertificate, layout: SecretLayout) -> str:
    if certificate.secret_name is not None:
        return layout.secret_reference(certificate.secret_name, certificate.key)
    return layout.config_map_reference(certificate.config_map_name or "", certificate.key)
