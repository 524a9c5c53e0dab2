"""Which settings of topics follow the source: the filter of their names, and what is left alone on single topics.

The latter is not MM2's: `mirrorflow.config.properties.exclude.by.topic`, pairs of expressions as `topics:settings`.
"""

import re

from mirrorflow_replicator.connect.plugins import make_config_filter
from mirrorflow_replicator.connect.values import PropertyReader
from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.flow.patterns import compile_patterns
from mirrorflow_replicator.flow.topic_configs import ConfigException, ConfigRules
from mirrorflow_replicator.settings import SourceSettings

BY_TOPIC_KEY = "mirrorflow.config.properties.exclude.by.topic"
# Neither topics nor settings have a colon in their names; that of `(?:` is part of an expression.
_COLON = re.compile(r"(?<!\(\?):")


def config_exceptions(read: PropertyReader) -> tuple[tuple[str, str], ...]:
    """Pairs of expressions, for topics of the source and for settings. Raises InvalidSettingError."""
    pairs = []
    for written in read.names(BY_TOPIC_KEY, ()):
        parts = [part.strip() for part in _COLON.split(written)]
        if len(parts) != 2 or not all(parts):
            raise InvalidSettingError(
                key=BY_TOPIC_KEY,
                problem=f"{written!r} is not a pair",
                action="write topics:settings, for example orders.*:retention\\.ms",
            )
        pairs.append((parts[0], parts[1]))
    _compiled(tuple(pairs))
    return tuple(pairs)


def make_config_rules(settings: SourceSettings) -> ConfigRules:
    """The rules of a connector."""
    return ConfigRules(
        selects=make_config_filter(settings),
        defaults_from_source=settings.use_defaults_from_source,
        exceptions=_compiled(settings.config_exceptions),
    )


def _compiled(pairs: tuple[tuple[str, str], ...]) -> tuple[ConfigException, ...]:
    return tuple(ConfigException(topics=_expression(one), settings=_expression(two)) for one, two in pairs)


def _expression(pattern: str) -> re.Pattern[str]:
    compiled = compile_patterns(BY_TOPIC_KEY, (pattern,))
    assert compiled is not None, "a list of one expression"
    return compiled
