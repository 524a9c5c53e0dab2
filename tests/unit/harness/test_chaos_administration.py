"""The denials of a trial are removed, even if a request is executed but its response is lost."""

from typing import Any

from tests.chaos.administration import Administration


class Acls:
    """A cluster that carries out all requests, but sends no response to the next `lost` of them."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.denied: set[str] = set()

    def allow(self, operation: str, resource: str, name: str, **_: Any) -> None:
        self.denied.add(name)
        self._respond()

    def remove_acl(self, operation: str, resource: str, name: str, **_: Any) -> None:
        self._respond()
        self.denied.discard(name)

    def _respond(self) -> None:
        self.lost -= 1
        if self.lost >= 0:
            raise TimeoutError


def administrators(acls: Any) -> Administration:
    return Administration(east=acls, west=acls, copies=("west.orders",), user="mirror")


def test_a_denial_without_a_response_is_removed():
    acls = Acls(lost=1)
    administration = administrators(acls)

    assert administration.deny_copy(0, duration_s=0) == ""
    assert acls.denied == {"west.orders"}
    administration.restore()
    assert not acls.denied


def test_a_removal_without_a_response_is_repeated():
    acls = Acls(lost=0)
    administration = administrators(acls)
    assert administration.deny_copy(0, duration_s=0)

    acls.lost = 1
    administration.tick()
    assert acls.denied
    administration.tick()
    assert not acls.denied
