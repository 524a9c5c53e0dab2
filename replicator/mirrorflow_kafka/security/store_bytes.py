"""Reads the bytes of a store file and detects the format from the content, as Java 9 and later do."""

from pathlib import Path

from mirrorflow_core.errors import FileMissingError, InvalidSettingError, RefusedSettingError
from mirrorflow_kafka.security.jks import JCEKS_MAGIC, JKS_MAGIC

# A store with all public CAs is about 200 KiB; a path such as /dev/zero must not fill the memory.
STORE_BYTES_MAX = 16 << 20
# Errors show a path up to this length; a longer value, or one with line breaks, is a pasted store.
_PATH_CHARS_MAX = 300
ADVICE = {
    "JCEKS": "JCEKS is not read; convert the store with keytool -importkeystore -deststoretype pkcs12",
    "PKCS11": "keys in hardware are not reachable from here",
}


def read_store(location: str, key: str) -> bytes:
    """Return the content of the file at *location*.

    Raises InvalidSettingError that names the setting *key*.
    """
    shown = location if len(location) <= _PATH_CHARS_MAX and location.isprintable() else "the path"
    try:
        with Path(location).open("rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise FileMissingError(key=key, path=shown) from None
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a path"
        raise InvalidSettingError(key=key, problem=f"{shown} cannot be read: {problem}") from None
    if len(data) > STORE_BYTES_MAX:
        raise InvalidSettingError(key=key, problem=f"{shown} is larger than {STORE_BYTES_MAX >> 20} MiB")
    return data


def store_format(data: bytes, key: str) -> str:
    """Return "JKS", "PKCS12" or "PEM". Raises SettingError for any other content."""
    if data.startswith(JKS_MAGIC):
        return "JKS"
    if data.startswith(JCEKS_MAGIC):
        raise RefusedSettingError(key=key, why=ADVICE["JCEKS"])
    if data.startswith(b"\x30"):  # a DER SEQUENCE
        return "PKCS12"
    if b"-----BEGIN " in data:
        return "PEM"
    raise InvalidSettingError(key=key, problem="the file is none of JKS, PKCS12 and PEM")
