"""Everything that talks to Kafka brokers, built on kafka-python's protocol classes without its clients.

The `kafka` package also imports those clients, which takes a quarter of the startup time of a MirrorFlow
process. Its `__init__` therefore runs only when code, such as a user's own policy class, accesses one of its
attributes. The packages of its protocol import the classes of all requests, so modules import those that they use.
"""

from mirrorflow_core.lazy_package import leave_unopened

for _package in ("kafka", "kafka.protocol.admin", "kafka.protocol.consumer", "kafka.protocol.producer"):
    leave_unopened(_package)
