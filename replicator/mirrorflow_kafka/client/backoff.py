"""Makes the core's backoff available under its former name."""

from mirrorflow_core.backoff import JITTER, Backoff, backoff_s

__all__ = ["JITTER", "Backoff", "backoff_s"]
