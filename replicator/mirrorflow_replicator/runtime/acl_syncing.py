"""The ACLs of the copies kept in step with the source's topics: the plans of `flow.topic_acls`, carried out.

Each pass looks at both clusters anew and is safe to repeat, also by two processes at once. What a cluster refuses is a
sentence in the answer and disturbs no copying; only a cluster that cannot be reached is raised. With `report_only` nothing
is written, and the answer says what would be.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from mirrorflow_replicator.errors import BrokerError, NotAuthorizedError, UnsupportedBrokerError
from mirrorflow_replicator.flow.policy import remote_prefix
from mirrorflow_replicator.flow.selection import TopicSelection
from mirrorflow_replicator.flow.topic_acls import TOPIC, AclBinding, AclPlan, AclRules, plan_acls
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.acl_marks import AclMarks
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import SECURITY_DISABLED
from mirrorflow_replicator.settings import PolicyKind, SourceSettings

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
        self._refused: set[AclBinding] = set()  # in the pass before
        self._without_authorizer: set[str] = set()  # clusters of which that was told

    async def sync(self, topics: Collection[str]) -> tuple[str, ...]:
        """Make the ACLs of the copies follow; *topics* are those copied now. The sentences of what is not done."""
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
        """New ones first: where one pattern takes the place of another, nobody is locked out, or let in, in between."""
        now_ms = time.time_ns() // 1_000_000
        created: Mapping[AclBinding, admin.Refusal | None] = {}
        removed: Mapping[AclBinding, admin.Refusal | None] = {}
        if plan.create:
            # Marked first: ended in between, the next process still knows whose it is. What was refused before is marked
            # when it is there, or a refusal would be two marks in every pass, in a topic that keeps them for ever.
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

    def _done(self, verb: str, answers: Mapping[AclBinding, admin.Refusal | None]) -> Sequence[AclBinding]:
        done = [acl for acl, refusal in answers.items() if refusal is None]
        for acl in done:
            # Each of them, as whoever asks later who opened a topic finds it nowhere else.
            log.info("%s: ACL %s on %s: %s", self._name, verb, self._target.alias, acl)
        return done

    def _tell_once(self, cluster: str) -> None:
        if cluster in self._without_authorizer:
            return
        self._without_authorizer.add(cluster)
        message = "%s: Topic ACLs are not synchronised: cluster %s has no authorizer; sync.topic.acls.enabled=false says so."
        # The source has none to give, as most clusters; with a target that has none, copies are open to everybody.
        level = logging.WARNING if cluster == self._target.alias else logging.INFO
        log.log(level, message, self._name, cluster)
