"""Ignores a warning: kafka-python calls a function that is deprecated in Python 3.11 and 3.12."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Ignores only this warning of kafka-python."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")
