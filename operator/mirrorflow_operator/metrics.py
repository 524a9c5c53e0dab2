"""Declares the operator's Prometheus metrics.

Label values come from a bounded set; they are never names of a user's objects.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

NAMESPACE: Final = "mirrorflow_operator"  # each name below follows it and an underscore
SECONDS_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
# Otherwise each counter has a second series with the time at which it began.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one operator process; a gauge without a function is 0."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leader = self._gauge("leader", "1 while this process leads.")
        self.flows = self._gauge("flows", "MirrorFlows in the watched namespaces.")
        self.flows_not_ready = self._gauge(
            "flows_not_ready", "MirrorFlows that are not Ready, without those that users paused or stopped."
        )
        self.flows_seed_failed = self._gauge("flows_seed_failed", "MirrorFlows whose seed failed.")
        self.flows_different = self._gauge(
            "flows_different", "MirrorFlows whose verification found differences."
        )
        self.flows_verification_overdue = self._gauge(
            "flows_verification_overdue",
            "MirrorFlows without a verification result for longer than their schedule allows.",
        )
        self.flows_archive_failing = self._gauge(
            "flows_archive_failing",
            "MirrorFlows whose last export failed or left topics out, or that are overdue for one.",
        )
        self.flows_restore_failed = self._gauge("flows_restore_failed", "MirrorFlows whose restore failed.")
        self._add_pairs()
        self.queue_depth = self._gauge("queue_depth", "Flows and pairs that are due or being reconciled.")
        self.queue_oldest = self._gauge(
            "queue_oldest_seconds", "Seconds since the oldest of them became due."
        )
        self.statuses_held = self._gauge(
            "statuses_held",
            "Flows whose newest status is held back for some seconds, to write several changes at once.",
        )
        self.reconciles = self._counter("reconciles_total", "Passes over a flow, by result.", "result")
        self.reconcile_seconds = Histogram(
            "reconcile_seconds",
            "Duration of a pass.",
            namespace=NAMESPACE,
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self.api_requests = self._counter(
            "api_requests_total",
            "Requests to the API server by verb, kind and HTTP status; 0: no response.",
            "verb",
            "kind",
            "code",
        )
        self.api_writes = self._counter(
            "api_writes_total", "Writes to the API server that succeeded, by verb and kind.", "verb", "kind"
        )
        self.failed_lists = self._counter(
            "failed_lists_total", "Failed attempts to list the cluster or a namespace, by reason.", "reason"
        )
        self.watch_restarts = self._counter("watch_restarts_total", "Restarts of the watches.")
        self.watch_misses = self._counter(
            "watch_misses_total", "Changes that a list showed and the watch had missed.", "kind"
        )
        self.events = self._counter("events_total", "Events written, by reason.", "reason")
        self.events_dropped = self._counter("events_dropped_total", "Events dropped by the rate limit.")
        self.polled_pods = self._gauge("polled_pods", "Pods whose progress is polled.")
        self.polls = self._counter("polls_total", "Polls since the start.")
        self.polls_failed = self._counter("polls_failed_total", "Polls that failed.")

    def _add_pairs(self) -> None:
        self.pairs = self._gauge("pairs", "MirrorPairs in the watched namespaces.")
        self.switchovers_under_way = self._gauge(
            "switchovers_under_way", "Switchovers that have begun and not ended."
        )
        self.pairs_not_reconciled = self._gauge(
            "pairs_not_reconciled",
            "MirrorPairs whose clusters wait to be reconciled after an unplanned switchover.",
        )
        self.switchover_refuses_writes = self._gauge(
            "switchover_refuses_writes_seconds",
            "Seconds for which the applications of a pair cannot write by now; the longest, 0 if all can.",
        )

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, namespace=NAMESPACE, registry=self.registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, namespace=NAMESPACE, registry=self.registry)
