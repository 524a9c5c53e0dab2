"""Leadership by a Lease (coordination.k8s.io/v1): which of several operators works, while the others wait.

    acquire   free, given back, or silent for as long as its holder has promised to be at most
    renew     each third of the duration
    lost      no renewal for two thirds of it: the holder stops working, and begins to wait like the others
    release   at the end, by emptying the holder: who waits need not wait for the silence

Another's silence is measured by the own monotonic clock from when its record was seen to change, so clocks need not agree.
Nothing's safety stands on this: every write is conditional. Two that work at once cost refused writes.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from mirrorflow_operator.cluster.client import Client
from mirrorflow_operator.cluster.kinds import LEASE
from mirrorflow_operator.errors import ClusterError, ConflictError, NotFoundError

_LOG = logging.getLogger(__name__)
CALL_TIMEOUT_PART: Final = 5  # of the duration: one lost answer must not cost the Lease
RENEWALS: Final = 3  # within the duration
RELEASE_TIMEOUT_S: Final = 2.0  # of a pod's grace period, which is short


@dataclass(slots=True, kw_only=True)
class Lease:
    """One candidate, called *identity*."""

    client: Client
    namespace: str
    name: str
    identity: str
    duration_s: float
    clock: Callable[[], float] = time.monotonic
    renewed_at: float | None = None  # by the clock, when the request that succeeded was begun; None: not held
    promised_until: float | None = None  # by the clock: others keep away until then; stays until `stood_down`
    _seen: tuple[str, int, str] | None = None  # holder, transitions, renewTime of another's record
    _seen_at: float = field(default=0.0)

    @property
    def retry_s(self) -> float:
        """Between two tries."""
        return self.duration_s / RENEWALS

    @property
    def deadline_s(self) -> float:
        """How long a holder goes on working without a renewal."""
        return self.duration_s * 2 / RENEWALS

    async def acquire(self) -> None:
        """Returns when it is held; waits as long as that takes."""
        while not await self._tried(self._timeout_s):  # noqa: ASYNC110  nobody else tells that it is free
            await asyncio.sleep(self.retry_s / 2)

    async def keep(self) -> None:
        """Renews it; returns when it is lost: another has it, or nothing was heard for `deadline_s`."""
        wait_s = self.retry_s
        while self.renewed_at is not None:
            until = self.renewed_at + self.deadline_s
            await asyncio.sleep(max(0.0, min(wait_s, until - self.clock())))
            left_s = until - self.clock()
            if left_s <= 0:
                self.renewed_at = None
            elif await self._tried(min(left_s, self._timeout_s)):
                wait_s = self.retry_s
            else:
                wait_s = self.retry_s / CALL_TIMEOUT_PART

    def stood_down(self) -> None:
        """Nothing works any more on the strength of the Lease."""
        self.promised_until = None

    async def release(self) -> None:
        """Gives it back, if it is held; who cannot is silent, and waited for."""
        if self.renewed_at is None:
            return
        self.renewed_at = None
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                found = await self.client.read(LEASE, self.namespace, self.name, timeout_s=RELEASE_TIMEOUT_S)
                if found["spec"].get("holderIdentity") == self.identity:
                    # A second: by client-go's rule, too, the record is free at once.
                    spec = {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._replace(found, spec)

    @property
    def _timeout_s(self) -> float:
        return self.duration_s / CALL_TIMEOUT_PART

    async def _tried(self, timeout_s: float) -> bool:
        begun = self.clock()
        try:
            async with asyncio.timeout(timeout_s):
                held = await self._try()
        except (ClusterError, TimeoutError) as error:
            # A conflict is another candidate who was quicker: the next look sees it.
            if not isinstance(error, ConflictError):
                _LOG.warning("Lease %s/%s: %s", self.namespace, self.name, error or "no answer in time")
            return False
        if held:
            self.renewed_at, self.promised_until = begun, begun + self.duration_s
        return held

    async def _try(self) -> bool:
        try:
            found = await self.client.read(LEASE, self.namespace, self.name, timeout_s=self._timeout_s)
        except NotFoundError:
            body = {
                "apiVersion": LEASE.api_version,
                "kind": LEASE.name,
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": self._spec({}),
            }
            await self.client.create(LEASE, self.namespace, body, timeout_s=self._timeout_s)
            return True
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in {"", self.identity}:
            self.renewed_at = None
            if not self._is_silent(spec):
                return False
        await self._replace(found, self._spec(spec))
        return True

    def _is_silent(self, spec: dict[str, Any]) -> bool:
        record = (spec["holderIdentity"], spec.get("leaseTransitions", 0), spec.get("renewTime", ""))
        if record != self._seen:
            self._seen, self._seen_at = record, self.clock()
        return self.clock() - self._seen_at > float(spec.get("leaseDurationSeconds", self.duration_s))

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = old.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self.duration_s),
            "acquireTime": old.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": old.get("leaseTransitions", 0) + (0 if mine or not old else 1),
        }

    async def _replace(self, found: dict[str, Any], spec: dict[str, Any]) -> None:
        await self.client.replace(
            LEASE, self.namespace, self.name, {**found, "spec": spec}, timeout_s=self._timeout_s
        )
