"""Logs in to Kubernetes by the official package: for the operator, the console and `kubectl mirrorflow`.

The `kubernetes` package imports all of its parts, and kopf imports the package: 10 MiB of private memory instead of 3.
Its `__init__` therefore runs only when code accesses one of its attributes that is no submodule.
"""

from mirrorflow_core.lazy_package import leave_unopened

leave_unopened("kubernetes")
leave_unopened("kubernetes.aio")
