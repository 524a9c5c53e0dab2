"""The keys of MM2's connectors that have no effect here, because nothing corresponds to them.

Names are those of Kafka 4.3.
"""

from mirrorflow_replicator.config.key_rows import Key, Scope, Verdict, rows

IGNORED_CONNECTOR_KEYS: tuple[Key, ...] = (
    *rows(
        Scope.CONNECTOR,
        Verdict.IGNORED,
        (
            ("tasks.max.enforce", "there are never more tasks than `tasks.max`"),
            ("metric.reporters", "metrics are served by HTTP; reporters are Java classes"),
            ("auto.include.jmx.reporter", "metrics are served by HTTP"),
            ("errors.retry.timeout", "what time may heal is retried without end, and reported"),
            ("errors.retry.delay.max.ms", "what time may heal is retried without end, and reported"),
            ("errors.log.enable", "errors are always logged"),
            ("errors.log.include.messages", "payloads are never logged"),
            ("connector.plugin.version", "there is one version of each connector here"),
            ("add.source.alias.to.metrics", "every metric has the alias, as since MM2 4.0"),
        ),
    ),
)
