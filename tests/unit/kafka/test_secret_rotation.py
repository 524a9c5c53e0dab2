"""Connections follow the secrets that they were opened by: one by one, and never before the next one is open."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import AuthenticationFailedError, UnreachableError
from mirrorflow_kafka.client.pool import ConnectionPool, PoolKey
from mirrorflow_kafka.security.secret_rotation import SecretRotation


class Opened:
    """A connection, as far as a pool looks at it."""

    def __init__(self, security: object) -> None:
        self.opened_by = security
        self.is_open = True
        self.retired = 0

    def retire(self) -> None:
        self.retired += 1

    def close(self) -> None:
        self.is_open = False


class World:
    """A cluster that takes what is in *accepted*, and connections to two brokers."""

    def __init__(self) -> None:
        self.security: Any = "first"
        self.accepted = {"first"}
        self.down: set[int] = set()
        self.attempts: list[object] = []
        self.pool = ConnectionPool(self._open, cluster="west")
        self.rotation = SecretRotation("west", self.pool, lambda: self.security)

    async def _open(self, key: PoolKey) -> Any:
        self.attempts.append(self.security)
        if key.node_id in self.down:
            raise UnreachableError(cluster="west", addresses="b:1", problem="refused")
        if self.security not in self.accepted:
            raise AuthenticationFailedError(
                cluster="west", address="b:1", mechanism="PLAIN", problem="no such password"
            )
        return Opened(self.security)

    async def connections(self) -> list[Any]:
        return [await self.pool.get(PoolKey(node, "produce", 0)) for node in (1, 2)]


def test_what_was_opened_by_older_secrets_is_replaced_and_only_that() -> None:
    """The old ones are retired, not closed: what is in flight is answered."""

    async def main() -> None:
        world = World()
        old = await world.connections()
        await world.rotation.check()
        assert old == await world.connections()

        world.security, world.accepted = "second", {"second"}
        await world.rotation.check()
        await world.rotation.check()

        new = await world.connections()
        assert ["second", "second"] == [one.opened_by for one in new]
        assert [(1, True), (1, True)] == [(one.retired, one.is_open) for one in old]
        assert 4 == len(world.attempts)
        assert () == world.rotation.warnings

    asyncio.run(main())


def test_refused_secrets_leave_what_is_open_and_are_told_until_the_right_ones_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told once; tried again after a while, or at once when there are others."""

    async def main() -> None:
        world = World()
        old = await world.connections()
        world.security = "wrong"
        await world.rotation.check()
        await world.rotation.check()

        assert old == await world.connections()
        assert [0, 0] == [one.retired for one in old]
        assert 3 == len(world.attempts), "it was tried again at once"
        (warning,) = world.rotation.warnings
        assert "no such password" in warning
        assert 1 == len(caplog.records)

        world.security, world.accepted = "right", {"right"}
        await world.rotation.check()
        assert () == world.rotation.warnings
        assert ["right", "right"] == [one.opened_by for one in await world.connections()]

    asyncio.run(main())


def test_a_broker_that_is_down_says_nothing_of_secrets() -> None:
    """The others are replaced all the same."""

    async def main() -> None:
        world = World()
        old = await world.connections()
        world.security, world.accepted, world.down = "second", {"second"}, {1}
        await world.rotation.check()

        assert [0, 1] == [one.retired for one in old]
        assert () == world.rotation.warnings

    asyncio.run(main())
