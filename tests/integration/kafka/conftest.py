"""kafka-python reads its schemas by a function that Python 3.11 and 3.12 call deprecated (3.13 does not)."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Only this warning of only that library."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")
