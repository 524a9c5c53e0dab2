"""After a secret rotation, connections are replaced one by one, each after its successor is open."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import AuthenticationFailedError, UnreachableError
from mirrorflow_kafka.client.pool import ConnectionPool, PoolKey
from mirrorflow_kafka.security import secret_rotation
from mirrorflow_kafka.security.secret_rotation import SecretRotation


class OpenedConnection:
    """The attributes of a connection that a pool uses."""

    def __init__(self, security: object) -> None:
        self.opened_by = security
        self.is_open = True
        self.retired = 0

    def retire(self) -> None:
        self.retired += 1

    def close(self) -> None:
        self.is_open = False


class World:
    """A cluster that accepts the secrets in *accepted*, with connections to two brokers."""

    def __init__(self) -> None:
        self.security: Any = "first"
        self.accepted = {"first"}
        self.down: set[int] = set()
        self.attempts: list[object] = []
        self.pool = ConnectionPool(self._open, cluster="west")
        self.bugs: dict[str, Exception] = {}  # raised by the config provider, or when a connection is opened
        self.rotation = SecretRotation("west", self.pool, self._resolved)

    def _resolved(self) -> Any:
        if "config provider" in self.bugs:
            raise self.bugs["config provider"]
        return self.security

    async def _open(self, key: PoolKey) -> Any:
        self.attempts.append(self.security)
        if "broker" in self.bugs:
            raise self.bugs["broker"]
        if key.node_id in self.down:
            raise UnreachableError(cluster="west", addresses="b:1", problem="refused")
        if self.security not in self.accepted:
            raise AuthenticationFailedError(
                cluster="west", address="b:1", mechanism="PLAIN", problem="no such password"
            )
        return OpenedConnection(self.security)

    async def connections(self) -> list[Any]:
        return [await self.pool.get(PoolKey(node, "produce", 0)) for node in (1, 2)]


def test_only_connections_with_older_secrets_are_replaced() -> None:
    """Old connections are retired but not closed, so that requests in flight get their responses."""

    async def main() -> None:
        world = World()
        old = await world.connections()
        await world.rotation.check()
        assert old == await world.connections()

        world.security, world.accepted = "second", {"second"}
        await world.rotation.check()
        await world.rotation.check()

        new = await world.connections()
        assert ["second", "second"] == [connection.opened_by for connection in new]
        assert [(1, True), (1, True)] == [(connection.retired, connection.is_open) for connection in old]
        assert 4 == len(world.attempts)
        assert () == world.rotation.warnings

    asyncio.run(main())


def test_refused_secrets_keep_connections_and_cause_a_warning_until_valid_ones_arrive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The warning is logged once. Secrets are tried again later, or at once when they change."""

    async def main() -> None:
        world = World()
        old = await world.connections()
        world.security = "wrong"
        await world.rotation.check()
        await world.rotation.check()

        assert old == await world.connections()
        assert [0, 0] == [connection.retired for connection in old]
        assert 3 == len(world.attempts), "the same secrets are not tried again at once"
        (warning,) = world.rotation.warnings
        assert "no such password" in warning
        assert 1 == len(caplog.records)

        world.security, world.accepted = "right", {"right"}
        await world.rotation.check()
        assert () == world.rotation.warnings
        assert ["right", "right"] == [connection.opened_by for connection in await world.connections()]

    asyncio.run(main())


def test_an_unreachable_broker_causes_no_warning_about_secrets() -> None:
    """Connections to the other brokers are replaced."""

    async def main() -> None:
        world = World()
        old = await world.connections()
        world.security, world.accepted, world.down = "second", {"second"}, {1}
        await world.rotation.check()

        assert [0, 1] == [connection.retired for connection in old]
        assert () == world.rotation.warnings

    asyncio.run(main())


@pytest.mark.parametrize("place", ["config provider", "broker"])
def test_a_rotation_continues_after_an_unexpected_error(
    place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is not shown, because it may contain a secret."""
    monkeypatch.setattr(secret_rotation, "REFUSED_AGAIN_S", 0)

    async def main() -> None:
        world = World()
        await world.connections()
        world.security, world.accepted = "second", {"second"}
        world.bugs[place] = UnicodeError("the password s3cr3t")
        await world.rotation.check()
        await world.rotation.check()

        (warning,) = world.rotation.warnings
        assert "an unexpected UnicodeError" in warning
        assert [warning] == [record.getMessage() for record in caplog.records]

        world.bugs.clear()
        await world.rotation.check()
        assert () == world.rotation.warnings
        assert ["second", "second"] == [connection.opened_by for connection in await world.connections()]

    asyncio.run(main())

    assert "s3cr3t" not in caplog.text
