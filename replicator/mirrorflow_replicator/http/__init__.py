"""The HTTP server of a replicator: Kafka Connect's REST API, /progress, /metrics.

The first record does not wait for h11: the package is imported for the first connection.
"""

from mirrorflow_core.lazy_package import leave_unopened

leave_unopened("h11")
