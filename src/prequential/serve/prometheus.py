"""The figures of all tenants in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prequential.serve.service import Service

MOST_RECALLS = 50  # labels of a tenant that have a line of their own
TENANT = {  # figures of a tenant: what they are called in Prometheus, and what they are
    "pending": ("pending_predictions", "predictions that wait for their labels"),
    "labels_waiting": ("early_labels", "labels that wait for their predictions"),
    "position": ("examples", "examples learned"),
    "learn_lag": ("learn_lag_rows", "rows learned in context whose gradient steps are not done"),
    "scored": ("scored_labels", "labels that scored a prediction"),
    "accuracy": ("accuracy", "share of predictions that were right"),
    "nats": ("nats", "average charge -log p of the label"),
    "alarms": ("drift_alarms", "drift alarms among the latest 100"),
    "expired": ("expired", "predictions or labels that waited too long"),
}


class Figures(Collector):
    """What Prometheus collects, made from what the workers said."""

    def __init__(self, service: Service, workers: list[dict[str, Any]]) -> None:
        self.service, self.workers = service, workers

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_service()
        tenants = [pair for worker in self.workers for pair in worker["tenants"].items()]
        for name, (called, what) in TENANT.items():
            gauge = GaugeMetricFamily(f"prequential_{called}", what, labels=["tenant"])
            for tenant, figures in tenants:
                if figures[name] is not None:
                    gauge.add_metric([tenant], figures[name])
            yield gauge
        lag = GaugeMetricFamily("prequential_log_lag_rows", "rows that wait to be learned", labels=["tenant"])
        recall = GaugeMetricFamily(
            "prequential_recall", "share of a label's rows that were right", labels=["tenant", "label"]
        )
        delay = HistogramMetricFamily("prequential_label_delay_seconds", "from prediction to label", labels=["tenant"])
        for tenant, figures in tenants:
            lag.add_metric([tenant], self.service.lag(tenant)["log_lag"])
            delay.add_metric([tenant], *_buckets(figures["label_delay"]))
            most = sorted(figures["recall"], key=lambda text: -figures["counts"][text])[:MOST_RECALLS]
            for text in most:
                recall.add_metric([tenant, text[:100]], figures["recall"][text])
        yield from (lag, recall, delay)

    def _of_the_service(self) -> Iterator[Metric]:
        service = self.service
        yield GaugeMetricFamily("prequential_tenants", "tenants", value=len(service.tenants))
        latency = HistogramMetricFamily("prequential_latency_seconds", "of requests that succeeded", labels=["route"])
        for route, histogram in service.latency.items():
            latency.add_metric([route], *_buckets(histogram.to_dict()))
        yield latency
        replies = CounterMetricFamily("prequential_replies", "replies by status", labels=["status"])
        for status, count in sorted(service.statuses.items()):
            replies.add_metric([str(status)], count)
        yield replies
        for name, what in (("open", "tenants in memory"), ("memory", "bytes"), ("restarts", "of the process")):
            gauge = GaugeMetricFamily(f"prequential_worker_{name}", what, labels=["worker"])
            for worker in self.workers:
                gauge.add_metric([str(worker["worker"])], worker[name])
            yield gauge


def exposition(service: Service, workers: list[dict[str, Any]]) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(service, workers))
    return generate_latest(registry)


def _buckets(histogram: dict[str, Any]) -> tuple[list[tuple[str, float]], float]:
    """Counts below each bound, as Prometheus has them, and the sum."""
    total, buckets = 0, []
    for bound, count in zip([*histogram["bounds"], "+Inf"], histogram["counts"], strict=True):
        total += count
        buckets.append((str(bound), float(total)))
    return buckets, histogram["sum"]
