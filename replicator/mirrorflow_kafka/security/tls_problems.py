"""Describes a failed TLS handshake for the user: the cause and what to do."""

import ssl

# OpenSSL's X509_V_ERR_* codes.
_VERIFY_PROBLEMS = {
    9: "the broker's certificate is not valid yet; check the clock",
    10: "the broker's certificate has expired",
    18: "the broker's certificate is self-signed and not in the trust store (ssl.truststore.*)",
    19: "the broker's certificate chain ends in an unknown CA; put that CA into the trust store (ssl.truststore.*)",
    20: "the broker's certificate is signed by an unknown CA; put that CA into the trust store (ssl.truststore.*)",
    21: "the broker's certificate is signed by an unknown CA; put that CA into the trust store (ssl.truststore.*)",
    23: "the broker's certificate has been revoked",
    62: "the broker's certificate is for another host name; use the name it was made for",
    64: "the broker's certificate is not for this IP address; use the name it was made for",
}


def tls_problem(error: Exception) -> str:
    """Return what went wrong in the TLS handshake, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _VERIFY_PROBLEMS.get(error.verify_code)
        return known or f"the broker's certificate is not accepted ({error.verify_message})"
    reason = (getattr(error, "reason", None) or "").upper() if isinstance(error, ssl.SSLError) else ""
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return "the listener does not speak TLS; it may be a plaintext one"
    if "CERTIFICATE_REQUIRED" in reason:
        return "the broker wants a client certificate; set ssl.keystore.*"
    if "UNKNOWN_CA" in reason or "CERTIFICATE" in reason:
        return f"the broker does not accept our client certificate ({reason}); check ssl.keystore.*"
    if "PROTOCOL_VERSION" in reason or "NO_SHARED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"no common TLS version or cipher, or a client certificate is wanted ({reason}); check ssl.* settings"
    if isinstance(error, ssl.SSLEOFError | ConnectionError) or not reason:
        return "the connection was closed during the TLS handshake; the listener may be a plaintext one"
    return f"TLS failed ({reason})"
