"""Elects one of several operators as leader with a Lease (coordination.k8s.io/v1).

    acquire   when the Lease is new, released, or not renewed for its `leaseDurationSeconds`
    renew     every third of the duration
    lost      after two thirds of the duration without a renewal: the holder stops and becomes a candidate
    release   at shutdown, by emptying the holder, so that candidates need not wait for the Lease to expire

A candidate measures expiry with its own monotonic clock, from when it saw the record change, so the clocks of
operators need not agree. Safety does not depend on the Lease, because every write is conditional: two leaders
at once only cost refused writes.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from mirrorflow_operator.cluster.client import LEASE, Client
from mirrorflow_operator.errors import ApiServerError, ConflictError, NotFoundError

_LOG = logging.getLogger(__name__)
CALL_TIMEOUT_PART: Final = 5  # of the duration: one lost response must not cost the Lease
RENEWALS: Final = 3  # within the duration
SILENT_DURATIONS: Final = 2  # a candidate reads the Lease several times within one duration
RELEASE_TIMEOUT_S: Final = 2.0  # a small part of a pod's grace period


@dataclass(slots=True, kw_only=True)
class Lease:
    """One candidate for leadership, named *identity*."""

    client: Client
    namespace: str
    name: str
    identity: str
    duration_s: float
    clock: Callable[[], float] = time.monotonic
    renewed_at: float | None = None  # clock time at the start of the last successful renewal; None: not held
    # Clock time until which other candidates do not take over; kept until `stood_down`.
    promised_until: float | None = None
    answered_at: float | None = None  # clock time of the last response of the API server about the record
    _seen: tuple[str, int, str] | None = None  # holder, transitions, renewTime of another's record
    _seen_at: float = field(default=0.0)

    @property
    def retry_s(self) -> float:
        """Seconds between two attempts to renew."""
        return self.duration_s / RENEWALS

    @property
    def deadline_s(self) -> float:
        """Seconds for which a holder continues to work without a renewal."""
        return self.duration_s * 2 / RENEWALS

    @property
    def unanswered(self) -> str:
        """Why this candidate could not take over now; "" if it could."""
        if self.answered_at is None:
            return "the API server has not answered yet"
        silent_s = self.clock() - self.answered_at
        if silent_s > self.duration_s * SILENT_DURATIONS:
            return f"the API server has not answered for {silent_s:.0f} s"
        return ""

    async def acquire(self) -> None:
        """Waits, without a limit, until this candidate holds the Lease."""
        while not await self._tried(self._timeout_s):  # noqa: ASYNC110  no event reports that it is free
            await asyncio.sleep(self.retry_s / 2)

    async def keep(self) -> None:
        """Renews the Lease until it is lost: another holds it, or no renewal succeeded for `deadline_s`."""
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
        """Records that all work done under the Lease has ended."""
        self.promised_until = None

    async def release(self) -> None:
        """Releases the Lease if it is held. If this fails, other candidates wait until it expires."""
        if self.renewed_at is None:
            return
        self.renewed_at = None
        with contextlib.suppress(ApiServerError, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                found = await self.client.read(LEASE, self.namespace, self.name, timeout_s=RELEASE_TIMEOUT_S)
                if found["spec"].get("holderIdentity") == self.identity:
                    # One second, so that clients that use client-go's rule can take it at once as well.
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
        except (ApiServerError, TimeoutError) as error:
            # A conflict means that another candidate was faster; the next attempt reads its record.
            if not isinstance(error, ConflictError):
                _LOG.warning("Lease %s/%s: %s", self.namespace, self.name, str(error) or "no answer in time")
            return False
        if held:
            self.renewed_at, self.promised_until = begun, begun + self.duration_s
        return held

    async def _try(self) -> bool:
        try:
            found = await self.client.read(LEASE, self.namespace, self.name, timeout_s=self._timeout_s)
            self.answered_at = self.clock()
        except NotFoundError:
            self.answered_at = self.clock()
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
