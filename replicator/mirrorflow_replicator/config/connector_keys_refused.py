"""The keys of MM2's connectors that need a Java process: classes, transformations, dead letter queues.

With their default values they request nothing, and are accepted.
"""

from mirrorflow_replicator.config.key_rows import Key, Scope, Verdict, rows

NO_RECORDS = "batches are copied as bytes, no record passes through Java's converters and transformations"

REFUSED_CONNECTOR_KEYS: tuple[Key, ...] = (
    *(
        Key(
            name=name,
            scope=Scope.CONNECTOR,
            verdict=Verdict.REFUSED,
            note=note,
            accepted=accepted,
            python="python:" in note,
        )
        for name, note, accepted in (
            (
                "replication.policy.class",
                "it must be DefaultReplicationPolicy, IdentityReplicationPolicy or python:package.module:Class",
                ("DefaultReplicationPolicy", "IdentityReplicationPolicy"),
            ),
            (
                "topic.filter.class",
                "it must be DefaultTopicFilter or python:package.module:Class",
                ("DefaultTopicFilter",),
            ),
            (
                "group.filter.class",
                "it must be DefaultGroupFilter or python:package.module:Class",
                ("DefaultGroupFilter",),
            ),
            (
                "config.property.filter.class",
                "it must be DefaultConfigPropertyFilter or python:package.module:Class",
                ("DefaultConfigPropertyFilter",),
            ),
            (
                "forwarding.admin.class",
                "it must be ForwardingAdmin; topics are created through Kafka's own protocol",
                ("ForwardingAdmin",),
            ),
            ("key.converter", f"{NO_RECORDS}; it must be ByteArrayConverter", ("ByteArrayConverter",)),
            ("value.converter", f"{NO_RECORDS}; it must be ByteArrayConverter", ("ByteArrayConverter",)),
            (
                "header.converter",
                "it must be ByteArrayConverter, or SimpleHeaderConverter, which writes headers in base64, as in Java",
                ("ByteArrayConverter", "SimpleHeaderConverter"),
            ),
            (
                "errors.tolerance",
                "it must be `none`; a record that cannot be copied stops its partition and says so",
                ("none",),
            ),
        )
    ),
    *rows(
        Scope.CONNECTOR,
        Verdict.REFUSED,
        (
            ("key.converter.plugin.version", NO_RECORDS),
            ("value.converter.plugin.version", NO_RECORDS),
            ("header.converter.plugin.version", NO_RECORDS),
            (
                "errors.deadletterqueue.*",
                "records cannot be diverted; a partition that cannot go on stops and says so",
            ),
            ("topic.creation.*", "topics are created as on the source, with `replication.factor`"),
            ("topic.creation.groups", "topics are created as on the source, with `replication.factor`"),
            ("offsets.storage.topic", "positions of a flow are in one topic, `offset.storage.topic`"),
        ),
        top_level=False,
    ),
)
