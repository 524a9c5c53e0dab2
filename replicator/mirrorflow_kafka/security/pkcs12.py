"""Reads PKCS12 key stores (RFC 7292).

`cryptography` is imported only here, and only on use, because it takes 9 MiB of memory.
"""


class Pkcs12Error(Exception):
    """Raised if the store cannot be read; the message holds no secret."""


def read_pkcs12(data: bytes, password: str | None) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the first key as PKCS #8 DER (empty if there is none) and the certificates, the key's own first.

    Raises Pkcs12Error.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        NoEncryption,
        PrivateFormat,
    )
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12  # noqa: PLC0415

    try:
        store = load_pkcs12(data, password.encode() if password else None)
    except (ValueError, UnsupportedAlgorithm):
        problem = "the password does not fit, or the file is damaged or protected by an algorithm that OpenSSL lacks"
        raise Pkcs12Error(problem) from None
    own = [store.cert.certificate] if store.cert else []
    others = [other.certificate for other in store.additional_certs]
    certificates = tuple(one.public_bytes(Encoding.DER) for one in [*own, *others])
    if store.key is None:
        return b"", certificates
    return store.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), certificates
