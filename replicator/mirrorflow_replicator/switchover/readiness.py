"""Checks whether a planned switchover may begin. Nothing is changed but the canary topic and, for a moment, its ACLs.

Each check has a result once: "" or a sentence that names the field and the cure. One that cannot be answered now is asked again.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.switchover.last_verification import NOT_REQUIRED, why_not_verified
from mirrorflow_core.switchover.observation import ReadinessCheck
from mirrorflow_kafka.admin import admin
from mirrorflow_replicator.switchover.acl_fence import CanaryTimes, try_fence
from mirrorflow_replicator.switchover.endpoint import endpoint_problem
from mirrorflow_replicator.switchover.flow_mover import FlowMover
from mirrorflow_replicator.switchover.journal import RECORD_BYTES_MAX
from mirrorflow_replicator.switchover.pair_settings import FenceKind, PairClusters, SwitchoverSettings
from mirrorflow_replicator.switchover.permissions import missing_rights, sentence_of
from mirrorflow_replicator.switchover.quiescence import open_transactions, read_ends, shared_producer_ids
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions
from mirrorflow_replicator.switchover.write_fences import WriteFence

# An open transaction outlives the fence. Ordinary ones end within seconds; brokers abort the others after transaction.timeout.ms.
TRANSACTION_OPEN_MAX_MS: Final = 60_000
NAMES_MAX: Final = 5
# What the journal's largest record, that of promoting, has after compression for each topic and each partition.
TOPIC_BYTES: Final = 50
PARTITION_BYTES: Final = 47
Check = Callable[[], Awaitable[str]]


class ReadinessChecks:
    """The results of all checks of one switchover.

    `notes` are sentences that a user should know, and no reason to stop. `not_checked` are checks that the pair does not ask for, with the
    reason: they stop nothing, and their result is unknown.
    """

    def __init__(
        self,
        settings: SwitchoverSettings,
        clusters: PairClusters,
        *,
        fence: WriteFence,
        flows: FlowMover,
        partitions: SealedPartitions,
    ) -> None:
        """*fence*: of the source."""
        self.notes: list[str] = []
        self.not_checked: dict[ReadinessCheck, str] = {}
        self.canary: CanaryTimes | None = None
        self._settings = settings
        self._clusters = clusters
        self._fence = fence
        self._flows = flows
        self._partitions = partitions
        self._results: dict[ReadinessCheck, str] = {}
        self._checks: Mapping[ReadinessCheck, Check] = {
            ReadinessCheck.PERMISSIONS: self._permissions,
            ReadinessCheck.FLOWS: self._flows_run,
            ReadinessCheck.LAG: self._lag,
            ReadinessCheck.VERIFICATION: self._verification,
            ReadinessCheck.GROUPS: self._groups,
            ReadinessCheck.TRANSACTIONS: self._transactions,
            ReadinessCheck.PRODUCER_IDS: self._producer_ids,
            ReadinessCheck.ENDPOINT: self._endpoint,
        }

    @property
    def known(self) -> Mapping[ReadinessCheck, str]:
        """The results so far."""
        return dict(self._results)

    async def results(self) -> Mapping[ReadinessCheck, str]:
        """Returns the results that are known, after another attempt of those that are not."""
        for check, run in self._checks.items():
            if check not in self._results:
                await self._run(check, run)
        return dict(self._results)

    async def try_fence(self) -> None:
        """Tries the fence on the canary topic, where it consists of ACLs; the result is that of the check."""
        await self._run(ReadinessCheck.FENCE, self._try_fence)

    async def _run(self, check: ReadinessCheck, run: Check) -> None:
        try:
            self._results[check] = await run()
        except MirrorFlowError as error:
            if not error.retriable:
                self._results[check] = str(error)

    async def _verification(self) -> str:
        """The newest records are compared later, while writes are refused; all others only by an earlier verification."""
        settings = self._settings
        if settings.verified_within_ms is None:
            self.not_checked[ReadinessCheck.VERIFICATION] = f"{NOT_REQUIRED}."
        return why_not_verified(
            flow_name(settings.forward.flow),
            settings.last_verification,
            within_ms=settings.verified_within_ms,
            now_ms=time.time_ns() // 1_000_000,
            source=settings.verification_source,
        )

    async def _permissions(self) -> str:
        """Each right that a later state uses. Without Describe, brokers answer nothing else: that is the result, too."""
        try:
            if self._settings.fence is FenceKind.DENY_ACL:
                await self._fence.plan(await self._partitions.topics())
            copies, writer_ids = await self._partitions.copies(), await self._flows.writer_ids()
            names = await self._flows.group_names()
            missing = await missing_rights(self._settings, self._clusters, copies, writer_ids, names)
        except NotAuthorizedError as error:
            return str(error)
        return sentence_of(missing)

    async def _flows_run(self) -> str:
        settings, partitions = self._settings, await self._partitions.on_source()
        if not partitions:
            return f"spec.topics: flow {settings.forward.flow} selects no topic of {settings.source}."
        topics = len({partition.topic for partition in partitions})
        if topics * TOPIC_BYTES + len(partitions) * PARTITION_BYTES > RECORD_BYTES_MAX:
            return (
                f"spec.topics: {topics} topics with {len(partitions)} partitions do not fit in a record of the journal; "
                "divide them between several pairs."
            )
        return await self._flows.why_not_ready()

    async def _lag(self) -> str:
        """The lag is below the limit if every record is copied that is older than the limit."""
        forward = self._settings.forward
        if not await self._partitions.has_stored_positions():
            return (
                f"spec.readiness.maxLagSeconds: flow {forward.flow} has never copied: {self._settings.to} has no topic {forward.offsets.topic}, "
                "where it stores how far it has copied; start the flow."
            )
        partitions, copied = await self._partitions.on_source(), await self._flows.copied(None)
        source, limit_ms = self._clusters.source, self._settings.max_lag_ms
        ends = await read_ends(source, partitions)
        newer = await admin.offsets_at(source, partitions, time.time_ns() // 1_000_000 - limit_ms)
        late = [
            str(partition)
            for partition in partitions
            # -1: no record is as new
            if copied.get(partition, 0) < (newer[partition] if newer[partition] >= 0 else ends[partition].end)
        ]
        if not late:
            return ""
        return (
            f"spec.readiness.maxLagSeconds: flow {forward.flow} lags by more than {limit_ms / 1000:g} s in {_some(late)}; "
            "wait until it has caught up, or raise the limit."
        )

    async def _groups(self) -> str:
        # They would be waited for while writes are refused, until the limit rolls the switchover back.
        immovable, target = await self._flows.immovable_groups(), self._clusters.target.alias
        if immovable.with_members:
            return (
                f"groups: {_some([*immovable.with_members])} has members on {target}, so its offsets cannot be committed there; "
                "stop these consumers, or leave the group out of spec.groups."
            )
        if immovable.of_another_kind:
            return (
                f"groups: {_some([*immovable.of_another_kind])} is a group of another kind on {target}; "
                "delete that group, or leave it out of spec.groups."
            )
        if immovable.unread:
            return f"groups: {immovable.unread[0]} Leave the group out of spec.groups, or give {target} what it needs."
        return ""

    async def _transactions(self) -> str:
        source = self._clusters.source
        ends = await read_ends(source, await self._partitions.on_source())
        oldest_ms = time.time_ns() // 1_000_000 - TRANSACTION_OPEN_MAX_MS
        old = [
            str(transaction)
            for transaction in await open_transactions(source, ends)
            if transaction.last_timestamp_ms < oldest_ms
        ]
        if not old:
            return ""
        return (
            f"transactions: {source.alias} has {_some(old)}, without a record for more than {TRANSACTION_OPEN_MAX_MS // 1000} s; "
            "end them (kafka-transactions.sh abort), or wait until the brokers do."
        )

    async def _producer_ids(self) -> str:
        """Only a client that is moved without a restart keeps its id, which cannot be seen here: so it is a note."""
        copies = await self._partitions.copies()
        shared = await shared_producer_ids(self._clusters.source, self._clusters.target, copies)
        silent = {item.producer_id for item in shared if item.loses_silently}
        if silent:
            self.notes.append(
                f"{self._settings.to} knows {len(silent)} producer ids that are also used on {self._settings.source}. Restart producers when they "
                "move: one that only reconnects keeps its id, and its records may be acknowledged without being written."
            )
        return ""

    async def _endpoint(self) -> str:
        problems = await hook_problems(self._settings)
        if problem := await endpoint_problem(self._settings):
            problems.append(f"spec.endpoint: {problem}")
        return " ".join(problems)

    async def _try_fence(self) -> str:
        settings, clusters = self._settings, self._clusters
        if settings.fence is not FenceKind.DENY_ACL:
            self.not_checked[ReadinessCheck.FENCE] = (
                f"spec.fence.method is {settings.fence.value}, and only DenyAcl is tried on a canary topic."
            )
            return ""
        factor = settings.back.replication_factor
        self.canary = await try_fence(clusters.source, clusters.probe, replication_factor=factor)
        if settings.except_principals or settings.probe is not None:
            return ""
        return (
            f"spec.fence.exceptPrincipals: the fence also refuses flow {settings.back.flow}, as whose user the canary was written, so nothing "
            f"would be copied back to {settings.source}; name that user there, or make it a super user and write an application's identity "
            f"into spec.members.{settings.source}.probe."
        )


async def hook_problems(settings: SwitchoverSettings) -> list[str]:
    """Returns a sentence for each hook of the pair that cannot be run, with its field and the cure."""
    fence = "spec.fence" if settings.fence is FenceKind.NETWORK_POLICY else "spec.fence.hook"
    hooks = {"spec.endpoint.hook": settings.endpoint_hook, fence: settings.fence_hook}
    return [
        f"{path}.{problem}"
        for path, hook in hooks.items()
        if hook is not None and (problem := await hook.problem())
    ]


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + rest
