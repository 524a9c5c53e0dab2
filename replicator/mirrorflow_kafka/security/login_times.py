"""Reads the numeric `sasl.login.*` settings, within Java's limits: token refresh times and login timeouts."""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_kafka.security.oauth import RefreshWindow


def refresh_window(properties: Mapping[str, str]) -> RefreshWindow:
    """Return the refresh window from `sasl.login.refresh.*`, within Java's limits.

    Raises InvalidSettingError.
    """
    prefix = "sasl.login.refresh."
    return RefreshWindow(
        factor=number(properties, f"{prefix}window.factor", 0.8, least=0.5, most=1.0),
        jitter=number(properties, f"{prefix}window.jitter", 0.05, least=0.0, most=0.25),
        min_period_s=number(properties, f"{prefix}min.period.seconds", 60, least=0, most=900),
        buffer_s=number(properties, f"{prefix}buffer.seconds", 300, least=0, most=3600),
    )


def number(
    properties: Mapping[str, str], key: str, default: float, *, least: float, most: float = 2**31
) -> float:
    """Return the number set for *key*, or *default*. Raises InvalidSettingError outside *least* to *most*."""
    text = properties.get(key, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidSettingError(key=key, problem=f"it is no number from {least:g} to {most:g}")
    return value
