"""The requests about offsets of share groups (KIP-932), which kafka-python lacks: a class for each file of this folder.

The files are Kafka's message definitions of version 4.3 without comments. Version 1 of DescribeShareGroupOffsets adds the lag
(KIP-1226).
"""

import sys
from typing import Any

from kafka.protocol.api_message import ApiMessage


def _message_class(name: str) -> Any:
    """Returns kafka-python's class of the message that NAME.json defines."""
    return type(ApiMessage)(name, (ApiMessage,), {"__module__": __name__}, load_json=sys.modules[__name__])


# Asks a group's coordinator where each of its share partitions starts; -1 until it has a start offset.
DescribeShareGroupOffsetsRequest = _message_class("DescribeShareGroupOffsetsRequest")
DescribeShareGroupOffsetsResponse = _message_class("DescribeShareGroupOffsetsResponse")
# Sets start offsets of a group without members; creates the group if there is none.
AlterShareGroupOffsetsRequest = _message_class("AlterShareGroupOffsetsRequest")
AlterShareGroupOffsetsResponse = _message_class("AlterShareGroupOffsetsResponse")
