"""Adds up the records and bytes of a seed across its drivers. Pure.

Each driver counts from zero. `status.seed.driver` records the last driver included in the totals and what the
drivers before it had copied, so a restarted operator neither loses nor repeats a part. Drivers are processed
in the order in which their pods were created: one that is older than the recorded one is already included.
"""

from collections.abc import Iterable

from mirrorflow_operator.api.status import SeedDriver, SeedStatus
from mirrorflow_operator.assess.observation import PodSeen
from mirrorflow_operator.assess.reports import Report
from mirrorflow_operator.assess.timestamps import moment


def totals(before: SeedStatus, reports: Iterable[tuple[PodSeen, Report]]) -> dict[str, object]:
    """Returns the fields of the status *before* that *reports*, each with its driver's pod, update."""
    driver, records, size_bytes = before.driver, before.records, before.bytes
    for pod, report in sorted(reports, key=lambda one: (one[0].created_s, one[0].uid)):
        created = moment(pod.created_s)
        if driver is not None and pod.uid != driver.uid and created < driver.creation_time:
            continue
        if driver is None:
            # The first driver. Totals of a release that recorded no driver are attributed to it, too.
            driver = SeedDriver(uid=pod.uid, creation_time=created)
        elif pod.uid != driver.uid:
            driver = SeedDriver(
                uid=pod.uid, creation_time=created, earlier_records=records, earlier_bytes=size_bytes
            )
        records = driver.earlier_records + report.records
        size_bytes = driver.earlier_bytes + report.bytes
    return {"driver": driver, "records": records, "bytes": size_bytes}
