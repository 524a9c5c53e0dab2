"""Reads the results of verifications in a cluster: for each namespace a folder, on a volume that the drivers write to.

The volumes may be slow, and those who can write to them are tenants of the cluster. So each has a thread of its own, which
keeps no more than a page shows. A result belongs to the namespace of its folder; what it contains does not matter.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirrorflow_console.job_views import JobView
from mirrorflow_console.result_files import VERIFICATION, ResultFiles

# Of all results that are shown of a namespace. A summary has at most 100 windows; one with 2,000 keys of 200 characters has 2 MB.
RESULTS_MAX_BYTES: Final = 4 * 1024 * 1024
REST_S: Final = 2.0  # between two readings of a folder

_LOG: Final = logging.getLogger(__name__)


class NamespaceResults:
    """The newest verifications below *folders*, by namespace. They are read again after each `read`."""

    def __init__(self, folders: Mapping[str, Path], *, rest_s: float = REST_S) -> None:
        self._rest_s = rest_s
        self._results: dict[str, tuple[JobView, ...]] = dict.fromkeys(folders, ())
        self._wanted = {namespace: threading.Event() for namespace in folders}
        for namespace, folder in folders.items():
            threading.Thread(target=self._refresh, args=(namespace, folder), daemon=True).start()

    @property
    def namespaces(self) -> frozenset[str]:
        """Those that have a folder."""
        return frozenset(self._results)

    def read(self) -> list[JobView]:
        """Returns the results of the last reading, and requests the next one."""
        for wanted in self._wanted.values():
            wanted.set()
        return [result for results in self._results.values() for result in results]

    def _refresh(self, namespace: str, folder: Path) -> None:
        files = ResultFiles(
            folder, names=frozenset({VERIFICATION}), bytes_max=RESULTS_MAX_BYTES, keeps_documents=False
        )
        wanted = self._wanted[namespace]
        while True:
            try:
                views = tuple(replace(result, namespace=namespace) for result in files.read())
            except Exception:  # noqa: BLE001  one result that cannot be read must not end the reading
                _LOG.exception("Reading the results of %s failed.", namespace)
                views = ()
            self._results[namespace] = views
            time.sleep(self._rest_s)
            wanted.wait()
            wanted.clear()
