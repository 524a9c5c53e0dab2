"""Decides which topic settings follow the source: a filter by name, and exceptions for single topics.

The exceptions are not MM2's: `mirrorflow.config.properties.exclude.by.topic`, pairs of expressions as
`topics:settings`.
"""

import re

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.patterns import SettingPattern, compile_pattern
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topic_configs import ConfigException, ConfigRules
from mirrorflow_replicator.config.plugins import make_config_filter

BY_TOPIC_KEY = "mirrorflow.config.properties.exclude.by.topic"
# Neither topics nor settings have a colon in their names; that of `(?:` is part of an expression.
_COLON = re.compile(r"(?<!\(\?):")


def config_exceptions(read: PropertyReader) -> tuple[tuple[str, str], ...]:
    """Returns pairs of expressions, for topics of the source and for settings. Raises InvalidSettingError."""
    pairs = tuple(_pair(written) for written in read.names(BY_TOPIC_KEY, ()))
    _compiled(pairs)
    return pairs


def _pair(written: str) -> tuple[str, str]:
    parts = [part.strip() for part in _COLON.split(written)]
    if len(parts) != 2 or not all(parts):
        raise InvalidSettingError(
            key=BY_TOPIC_KEY,
            problem=f"{written!r} is not a pair",
            action="write topics:settings, for example orders.*:retention\\.ms",
        )
    return parts[0], parts[1]


def make_config_rules(settings: SourceSettings) -> ConfigRules:
    """Returns the rules of a connector."""
    return ConfigRules(
        selects=make_config_filter(settings),
        defaults_from_source=settings.use_defaults_from_source,
        exceptions=_compiled(settings.config_exceptions),
    )


def _compiled(pairs: tuple[tuple[str, str], ...]) -> tuple[ConfigException, ...]:
    return tuple(ConfigException(topics=_expression(one), settings=_expression(two)) for one, two in pairs)


def _expression(pattern: str) -> SettingPattern:
    return compile_pattern(BY_TOPIC_KEY, pattern)
