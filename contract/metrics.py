"""Each process's own metrics, for Prometheus. No label may name a GPU, a host or any other entity without bound."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from contract.errors import ConfigError
from contract.log import Log

PREFIX = "hallwatch"

_log = Log("metrics")


class Metrics:
    """A registry whose metrics all carry the product's prefix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def counter(self, name: str, doc: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", doc, labels, registry=self.registry)

    def gauge(self, name: str, doc: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", doc, labels, registry=self.registry)

    def histogram(
        self, name: str, doc: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", doc, labels, buckets=buckets, registry=self.registry)

    def serve(self, port: int, address: str = "127.0.0.1") -> None:
        """Serve `/metrics` from a background thread; port 0 serves nothing. Raises ConfigError(in_use)."""
        if not port:
            return
        try:
            start_http_server(port, addr=address, registry=self.registry)
        except OSError as error:
            raise ConfigError("in_use", f"metrics_port = {port}: {error.strerror}; 0 serves none") from error
        _log.info("metrics_served", address=address, port=port)
