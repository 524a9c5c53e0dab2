"""Creates and alters topics with every setting that the cluster accepts, and names each one that it refuses.

A broker applies all settings of a topic or none. So settings that are refused together are validated one by
one, which changes nothing, and those that are accepted are then applied together.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirrorflow_core.topics.topic_configs import ConfigChange
from mirrorflow_kafka.admin.config_requests import alter_topic_configs
from mirrorflow_kafka.admin.topics import NewTopic, create_topics
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    POLICY_VIOLATION,
    BrokerRefusal,
)

Changes = tuple[ConfigChange, ...]
Refusals = Mapping[str, BrokerRefusal | None]
Validate = Callable[[Mapping[str, Changes]], Awaitable[Refusals]]
# Codes that may be about a single setting; POLICY_VIOLATION is that of create.topic.policy and
# alter.config.policy.
_OF_A_SETTING = frozenset({INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of topics and settings.

    `refused`: topic -> the refusal of the topic itself; `settings`: a sentence for each refused setting.
    """

    refused: Mapping[str, BrokerRefusal]
    settings: tuple[str, ...] = ()


async def create_with_accepted_settings(
    cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> Outcome:
    """Create *topics*, each with the settings that the cluster accepts. Raises ClusterError."""
    if not topics:
        return Outcome(refused={})
    refused = _refused(await create_topics(cluster, topics, validate_only=validate_only))
    doubtful = {
        topic.name: topic
        for topic in topics
        if topic.configs and topic.name in refused and refused[topic.name].code in _OF_A_SETTING
    }

    def with_settings(settings: Mapping[str, Changes]) -> list[NewTopic]:
        return [
            replace(doubtful[name], configs={one.name: one.value or "" for one in changes})
            for name, changes in settings.items()
        ]

    async def validate(settings: Mapping[str, Changes]) -> Refusals:
        return await create_topics(cluster, with_settings(settings), validate_only=True)

    wanted = {
        name: tuple(ConfigChange(name=key, value=value) for key, value in topic.configs.items())
        for name, topic in doubtful.items()
    }
    accepted, sentences = await _sift(wanted, validate)
    if accepted:
        again = await create_topics(cluster, with_settings(accepted), validate_only=validate_only)
        refused = {name: why for name, why in refused.items() if name not in accepted} | _refused(again)
    return Outcome(
        refused=refused,
        settings=tuple(one for name, of in sentences.items() if name not in refused for one in of),
    )


async def alter_to_accepted_settings(
    cluster: Cluster, changes: Mapping[str, Changes], *, validate_only: bool = False
) -> tuple[dict[str, Changes], Outcome]:
    """Apply those of *changes* that the cluster accepts; return them, and what was refused.

    Raises ClusterError; UnsupportedBrokerError before Kafka 2.3.
    """
    if not changes:
        return {}, Outcome(refused={})
    refused = _refused(await alter_topic_configs(cluster, changes, validate_only=validate_only))
    doubtful = {name: changes[name] for name, why in refused.items() if why.code in _OF_A_SETTING}

    async def validate(settings: Mapping[str, Changes]) -> Refusals:
        return await alter_topic_configs(cluster, settings, validate_only=True)

    accepted, sentences = await _sift(doubtful, validate)
    some = {name: of_topic for name, of_topic in accepted.items() if of_topic}
    again = _refused(await alter_topic_configs(cluster, some, validate_only=validate_only)) if some else {}
    applied = {name: of_topic for name, of_topic in changes.items() if name not in refused}
    applied |= {name: of_topic for name, of_topic in some.items() if name not in again}
    return applied, Outcome(
        refused={name: why for name, why in refused.items() if name not in doubtful} | again,
        settings=tuple(one for of in sentences.values() for one in of),
    )


async def _sift(
    wanted: Mapping[str, Changes], validate: Validate
) -> tuple[dict[str, Changes], dict[str, list[str]]]:
    """Return the changes of each topic that are accepted together, and a sentence for each other one.

    One request tries one setting of all topics. What is refused is tried again when others have been
    accepted: `local.retention.ms` may need the `retention.ms` that comes with it.
    """
    accepted: dict[str, Changes] = dict.fromkeys(wanted, ())
    left = {(name, one.name): one for name, changes in wanted.items() for one in changes}
    why: dict[tuple[str, str], BrokerRefusal] = {}
    found = True
    while left and found:
        found = False
        for setting in sorted({setting for _, setting in left}):
            tried = {
                name: (*accepted[name], left[name, setting]) for name in wanted if (name, setting) in left
            }
            for name, refusal in (await validate(tried)).items():
                if refusal is not None:
                    why[name, setting] = refusal
                    continue
                accepted[name] = tried[name]
                del left[name, setting]
                found = True
    sentences: dict[str, list[str]] = {}
    for (name, setting), change in sorted(left.items()):
        wish = (
            f"does not get {setting}={change.value}" if change.value is not None else f"keeps its {setting}"
        )
        sentences.setdefault(name, []).append(f"Target topic {name} {wish}: {why[name, setting]}.")
    return accepted, sentences


def _refused(answers: Refusals) -> dict[str, BrokerRefusal]:
    return {name: refusal for name, refusal in answers.items() if refusal is not None}
