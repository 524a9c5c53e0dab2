"""The signature headers of REST calls between Connect workers, and the error that Connect returns."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The two signature headers of a request between workers of a group, "" for an absent one (KIP-507)."""

    mac: str = ""  # base64
    algorithm: str = ""  # Java's name


NO_SIGNATURE = Signature()


class ConnectError(Exception):
    """An error to return as Connect's error body (Java ErrorMessage), with this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)
