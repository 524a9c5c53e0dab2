"""Packages whose `__init__` has not run behave like imported ones."""

import subprocess
import sys

NESTED = """
import sys
import mirrorflow_kafka
opened = type(sys)
print(type(sys.modules["kafka"]) is opened, type(sys.modules["kafka.protocol.consumer"]) is opened)
import kafka.protocol.consumer
print(kafka.protocol.consumer.FetchRequest.__name__)
"""


def test_an_unopened_package_is_an_attribute_of_its_parent_and_does_not_open_it():
    """Runs in a different process, because imports cannot be undone."""
    ran = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, check=True)

    assert ["False False", "FetchRequest"] == ran.stdout.splitlines()
