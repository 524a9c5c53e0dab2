"""Keeps the ACLs of the copies in line with the source's topics, by the plans of `topics.topic_acls`.

Each pass reads both clusters again and is safe to repeat, also by two processes at once. What a cluster
refuses is a message in the result and does not affect copying; only an unreachable cluster is raised. With
`report_only` nothing is written, and the result says what would be.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from mirrorflow_core.errors import BrokerError, NotAuthorizedError, UnsupportedBrokerError
from mirrorflow_core.naming.replication_policy import remote_prefix
from mirrorflow_core.naming.topic_selection import TopicSelection
from mirrorflow_core.settings import PolicyKind, SourceSettings
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, AclPlan, AclRules, plan_acls
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.acl_marks import AclMarks
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import SECURITY_DISABLED

log = logging.getLogger("mirrorflow.worker")


class AclSync:
    """The ACLs of one flow's topics on both of its clusters."""

    def __init__(
        self, source: Cluster, target: Cluster, *, settings: SourceSettings, selection: TopicSelection
    ) -> None:
        policy = settings.policy
        renames = settings.naming_words != policy.words
        self._name = settings.name
        self._source = source
        self._target = target
        self._report_only = settings.acls_report_only
        self._rules = AclRules(
            selects=selection.selects,
            target_topic=selection.target_topic,
            target_prefix=lambda prefix: (
                None if renames else remote_prefix(policy, settings.source_alias, prefix)
            ),
            own_names=policy.kind is PolicyKind.DEFAULT and not renames,
        )
        self._marks = AclMarks(target, settings.source_alias, naming=settings.naming_words)
        self._refused: set[AclBinding] = set()  # in the previous pass
        self._without_authorizer: set[str] = set()  # clusters for which that was logged

    async def sync(self, topics: Collection[str]) -> tuple[str, ...]:
        """Copies ACLs to the target; *topics* are those copied now.

        Returns messages for what was not done.
        """
        try:
            return await self._sync(topics)
        except (NotAuthorizedError, UnsupportedBrokerError) as error:
            return (f"Topic ACLs are not synchronised: {error}",)
        except BrokerError as error:
            if error.code != SECURITY_DISABLED:
                return (f"Topic ACLs are not synchronised: {error}",)
            self._tell_once(error.cluster)
            return ()

    async def _sync(self, topics: Collection[str]) -> tuple[str, ...]:
        source = await admin.describe_acls(self._source, resource_type=TOPIC)
        target = await admin.describe_acls(self._target, resource_type=TOPIC)
        plan = plan_acls(
            source=source, target=target, ours=await self._marks.read(), topics=topics, rules=self._rules
        )
        if self._report_only:
            return (
                *(f"{acl}: would be created, but ACLs are only reported." for acl in plan.create),
                *(f"{acl}: would be removed, but ACLs are only reported." for acl in plan.remove),
                *plan.left_out,
            )
        return (*await self._carry_out(plan), *plan.left_out)

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
            hopeful = [acl for acl in plan.create if acl not in self._refused]
            await self._marks.write(ours=hopeful, others=(), now_ms=now_ms)
            created = await admin.create_acls(self._target, plan.create)
            await self._marks.write(ours=self._done("created", created), others=(), now_ms=now_ms)
        if plan.remove:
            removed = await admin.delete_acls(self._target, plan.remove)
        self._refused = {acl for acl, refusal in created.items() if refusal is not None}
        others = (*self._done("removed", removed), *plan.forget, *self._refused)
        await self._marks.write(ours=(), others=others, now_ms=now_ms)
        return [
            f"{acl}: cannot be {verb} on {self._target.alias}: {refusal.message.rstrip('.')}."
            for verb, answers in (("created", created), ("removed", removed))
            for acl, refusal in answers.items()
            if refusal is not None
        ]

    def _done(
        self, verb: str, answers: Mapping[AclBinding, admin.BrokerRefusal | None]
    ) -> Sequence[AclBinding]:
        done = [acl for acl, refusal in answers.items() if refusal is None]
        for acl in done:
            # One line each: the log is the only place that shows who opened a topic.
            log.info("%s: ACL %s on %s: %s", self._name, verb, self._target.alias, acl)
        return done

    def _tell_once(self, cluster: str) -> None:
        if cluster in self._without_authorizer:
            return
        self._without_authorizer.add(cluster)
        message = "%s: Topic ACLs are not synchronised: cluster %s has no authorizer; sync.topic.acls.enabled=false says so."
        # A source without an authorizer is common; with a target without one, copies are open to all.
        level = logging.WARNING if cluster == self._target.alias else logging.INFO
        log.log(level, message, self._name, cluster)
