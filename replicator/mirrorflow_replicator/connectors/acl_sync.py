"""Keeps the ACLs of the copies in line with the source's topics, by the plans of `mirrorflow_core.topics.topic_acls`.

Each pass reads both clusters again and is safe to repeat, also by two processes at once. What a cluster
refuses is a message in the result and does not affect copying; only an unreachable cluster is raised. With
`report_only` nothing is written, and the result says what would be.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mirrorflow_core.errors import (
    BrokerError,
    InternalTopicUnavailableError,
    NotAuthorizedError,
    UnsupportedBrokerError,
)
from mirrorflow_core.replication_policy import remote_prefix
from mirrorflow_core.settings import PolicyKind, SourceSettings
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, AclPlan, AclRules, first_acls, plan_acls
from mirrorflow_core.topics.topic_selection import TopicSelection
from mirrorflow_core.wire.error_codes import SECURITY_DISABLED
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.acls import (
    SETTING,
    AclNotAppliedError,
    loses_access,
    may_be_open,
    may_write_topic,
)
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.identity_topic import AclMarks, HoldLog

log = logging.getLogger("mirrorflow.worker")

PROBE_TOPIC = "mirrorflow-acl-probe"  # no topic of the source is called so
# Errors of a cluster that responds; neither topics nor their settings need what they are about.
_OF_ACLS_ALONE = (
    NotAuthorizedError,
    UnsupportedBrokerError,
    InternalTopicUnavailableError,
    AclNotAppliedError,
)
GRANT = "Give the flow ACLs of its own first; `mirrorflow acls` prints them."


def acl_rules(settings: SourceSettings, selection: TopicSelection) -> AclRules:
    """Returns the flow's selection and naming, for ACLs."""
    policy = settings.policy
    renames = settings.naming_fingerprint != policy.fingerprint
    return AclRules(
        selects=selection.selects,
        target_topic=selection.target_topic,
        target_prefix=lambda prefix: (
            None if renames else remote_prefix(policy, settings.source_alias, prefix)
        ),
        own_names=policy.kind is PolicyKind.DEFAULT and not renames,
    )


async def doubtful_access(
    cluster: Cluster, create: Collection[AclBinding], target: Collection[AclBinding], rules: AclRules
) -> str | None:
    """Returns a message if the ACLs *create* may deny the flow its own target topics; None otherwise.

    Changes nothing, so it cannot know whether the flow's user is a super user. Raises ClusterError.
    """
    first = first_acls(create, target)
    if not first or not await may_be_open(cluster):
        return None
    if not await may_write_topic(cluster, rules.target_topic(PROBE_TOPIC)):
        return None
    return (
        f"Where {cluster.alias} opens topics that no ACL names to everyone ({SETTING}), these ACLs would deny this "
        f"flow its own topics, unless its user is a super user: {first[0]}"
        f"{f' and {len(first) - 1} more' if len(first) > 1 else ''}. The flow tries that first, and then does not "
        f"create them. {GRANT}"
    )


class AclSync:
    """The ACLs of one flow's topics on both of its clusters."""

    def __init__(
        self, source: Cluster, target: Cluster, *, settings: SourceSettings, selection: TopicSelection
    ) -> None:
        self._name = settings.name
        self._source = source
        self._target = target
        self._report_only = settings.acls_report_only
        self._rules = acl_rules(settings, selection)
        self._keeps_access = False  # known: the first ACL of a topic does not lock this flow out
        self._log = HoldLog(
            target, settings.source_alias, replication_factor=settings.offsets.replication_factor
        )
        self._marks = AclMarks(target, settings.source_alias, naming=settings.naming_fingerprint)
        self._refused: set[AclBinding] = set()  # in the previous pass
        self._without_authorizer: set[str] = set()  # clusters for which that was logged

    async def sync(self, topics: Collection[str]) -> tuple[str, ...]:
        """Copies ACLs to the target; *topics* are those copied now. Returns messages for what was not done."""
        try:
            return await self._sync(topics)
        except _OF_ACLS_ALONE as error:
            return (f"Topic ACLs are not synchronised: {error}",)
        except BrokerError as error:
            if error.code != SECURITY_DISABLED:
                return (f"Topic ACLs are not synchronised: {error}",)
            self._log_once(error.cluster)
            return ()

    async def _sync(self, topics: Collection[str]) -> tuple[str, ...]:
        if not self._report_only:
            await self._log.ensure()  # where the marks are
        source = await admin.describe_acls(self._source, resource_type=TOPIC)
        target = await admin.describe_acls(self._target, resource_type=TOPIC)
        owned, unknown = await self._owned()
        # In a thread: 200,000 ACLs take some 6 s, within which a member of a group must send heartbeats.
        plan = await asyncio.to_thread(
            plan_acls, source=source, target=target, owned=owned, topics=tuple(topics), rules=self._rules
        )
        if self._report_only:
            doubt = await doubtful_access(self._target, plan.create, target, self._rules)
            return (
                *([doubt] if doubt else []),
                *(f"{acl}: would be created, but ACLs are only reported." for acl in plan.create),
                *(f"{acl}: would be removed, but ACLs are only reported." for acl in plan.remove),
                *plan.left_out,
                *unknown,
            )
        locking_out = await self._locking_out(plan.create, target)
        plan = replace(plan, create=tuple(acl for acl in plan.create if acl not in locking_out))
        return (
            *await self._carry_out(plan),
            *plan.left_out,
            *(
                f"{acl} is not created: {self._target.alias} opens topics that no ACL names to everyone "
                f"({SETTING}), and this flow could no longer write. {GRANT}"
                for acl in locking_out
            ),
        )

    async def _owned(self) -> tuple[frozenset[AclBinding], tuple[str, ...]]:
        """Returns the ACLs that the flow has created, and a message if that is not known: a flow that only reports may lack the right."""
        if not self._report_only:
            return await self._marks.read(), ()
        try:
            return (await self._marks.read() if await self._log.exists() else frozenset()), ()
        except NotAuthorizedError as error:
            return frozenset(), (f"Which ACLs would be removed is not known: {error}",)

    async def _locking_out(
        self, create: Collection[AclBinding], target: Collection[AclBinding]
    ) -> tuple[AclBinding, ...]:
        """Returns those of *create* that would lock the flow out of its own target topics."""
        first = first_acls(create, target)
        if not first or self._keeps_access:
            return ()
        open_now = await may_be_open(self._target)
        if open_now and await loses_access(self._target, self._rules.target_topic(PROBE_TOPIC)):
            return first
        self._keeps_access = True
        return ()

    async def _carry_out(self, plan: AclPlan) -> list[str]:
        """Creates before it removes.

        Where one pattern replaces another, access neither lapses nor widens in between.
        """
        now_ms = time.time_ns() // 1_000_000
        created: Mapping[AclBinding, admin.BrokerRefusal | None] = {}
        removed: Mapping[AclBinding, admin.BrokerRefusal | None] = {}
        if plan.create:
            # Marked first: after a kill in between, the next process still knows that the ACL is the flow's.
            # ACLs refused before are marked when they exist: otherwise each refusal would write two marks in
            # every pass, to a topic that keeps them forever.
            not_refused = [acl for acl in plan.create if acl not in self._refused]
            await self._marks.write(owned=not_refused, others=(), now_ms=now_ms)
            created = await admin.create_acls(self._target, plan.create)
            await self._marks.write(owned=self._done("created", created), others=(), now_ms=now_ms)
        if plan.remove:
            removed = await admin.delete_acls(self._target, plan.remove)
        self._refused = {acl for acl, refusal in created.items() if refusal is not None}
        others = (*self._done("removed", removed), *plan.forget, *self._refused)
        await self._marks.write(owned=(), others=others, now_ms=now_ms)
        return [
            f"{acl}: cannot be {verb} on {self._target.alias}: {refusal}."
            for verb, results in (("created", created), ("removed", removed))
            for acl, refusal in results.items()
            if refusal is not None
        ]

    def _done(
        self, verb: str, results: Mapping[AclBinding, admin.BrokerRefusal | None]
    ) -> Sequence[AclBinding]:
        done = [acl for acl, refusal in results.items() if refusal is None]
        for acl in done:
            # One line each: the log is the only place that shows who opened a topic.
            log.info("%s: ACL %s on %s: %s", self._name, verb, self._target.alias, acl)
        return done

    def _log_once(self, cluster: str) -> None:
        if cluster in self._without_authorizer:
            return
        self._without_authorizer.add(cluster)
        message = "%s: Topic ACLs are not synchronised: cluster %s has no authorizer; set sync.topic.acls.enabled=false if it needs none."
        # A source without an authorizer is common; with a target without one, copies are open to all.
        level = logging.WARNING if cluster == self._target.alias else logging.INFO
        log.log(level, message, self._name, cluster)
