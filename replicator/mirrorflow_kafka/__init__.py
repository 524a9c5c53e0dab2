"""Everything that talks to Kafka brokers, built on kafka-python's protocol classes without its clients.

The `kafka` package also imports those clients, which takes a quarter of the startup time of a MirrorFlow
process. Its `__init__` therefore runs only when code, such as a user's own policy class, accesses one of its
attributes.
"""

from mirrorflow_core.lazy_package import leave_unopened

leave_unopened("kafka")
