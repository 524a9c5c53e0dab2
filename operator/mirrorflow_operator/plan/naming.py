"""Builds the naming policy and the topic selection of a flow from its spec, with the replicator's own code.

A custom filter class is not known here: only the topic lists count.
"""

from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.patterns import TOPICS_EXCLUDE
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.replication_policy import make_policy
from mirrorflow_core.settings import PolicyKind, PolicySettings
from mirrorflow_core.topic_selection import TopicSelection
from mirrorflow_core.transforms import TopicTransforms, Transforms, read_transforms
from mirrorflow_operator.api.spec import MirrorFlow, NamingPolicy

_POLICY_KINDS = {NamingPolicy.PREFIX: PolicyKind.DEFAULT, NamingPolicy.IDENTITY: PolicyKind.IDENTITY}


def policy_settings(flow: MirrorFlow) -> PolicySettings:
    """Returns the naming policy of *flow*."""
    naming = flow.spec.topics.naming
    return PolicySettings(
        kind=_POLICY_KINDS[naming.policy],
        separator=naming.separator,
        internal_separator_enabled=_is_on(flow, "replication.policy.internal.topic.separator.enabled"),
        source_alias=flow.spec.source.alias,
    )


def naming_of(flow: MirrorFlow) -> TopicSelection:
    """Returns the topic selection of *flow*, which has passed the rules."""
    spec, policy = flow.spec, make_policy(policy_settings(flow))
    return TopicSelection(
        include=spec.topics.include,
        exclude=(*spec.topics.exclude, *TOPICS_EXCLUDE),
        policy=policy,
        source_alias=spec.source.alias,
        target_alias=spec.target.alias,
        heartbeats=_is_on(flow, "heartbeats.replication.enabled"),
        naming=TopicTransforms(policy, spec.source.alias, _transforms(flow)),
    )


def _transforms(flow: MirrorFlow) -> Transforms:
    """Returns the transformations of *flow*; none if they are invalid: its connector refuses to start."""
    try:
        return Transforms(read_transforms(PropertyReader(flow.spec.connectors.source.config)))
    except SettingError:
        return Transforms()


def _is_on(flow: MirrorFlow, key: str) -> bool:
    return flow.spec.connectors.source.config.get(key, "").strip().lower() != "false"
