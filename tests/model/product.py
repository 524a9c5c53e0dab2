"""How product code comes to live in a world: what it opens, reads and draws is the world's for the time of a run.

Nothing of the product is changed but the ends at which it touches what is outside of it: connections (`open_connection` of
`client.cluster`), clocks and chance (`tests.model.clock`), logging, and the hashes by which sets are ordered.
"""

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from mirrorflow_kafka.client import broker_writer as product_target
from mirrorflow_kafka.client import cluster as product_cluster
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.process import memory_tuning
from tests.model.clock import stable_hash, virtual

if TYPE_CHECKING:
    from tests.model.world import World

_LOG = logging.getLogger("mirrorflow")


@contextmanager
def simulated(world: "World") -> Iterator[None]:
    """Product code lives in *world* inside the block."""
    replaced: Mapping[tuple[Any, str], Any] = {
        (product_cluster, "open_connection"): world.network.open_connection,
        (product_target, "hash"): stable_hash,
        (memory_tuning, "give_back"): lambda: None,
        (PartitionCopier, "__hash__"): lambda lane: stable_hash(lane.topic) + lane.partition,
        **dict(_constants(world.options.constants)),
    }
    kept = {place: getattr(*place, None) for place in replaced}
    with ExitStack() as stack:
        stack.enter_context(virtual(world.clock, world.draws))
        if world.trace is not None:
            stack.enter_context(world.trace.of_product(lambda: world.running))
        else:
            stack.enter_context(_silent())
        for (owner, name), value in replaced.items():
            setattr(owner, name, value)
        try:
            yield
        finally:
            for (owner, name), value in kept.items():
                if value is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)


def _constants(wanted: Mapping[str, object]) -> Iterator[tuple[tuple[Any, str], Any]]:
    """The product's constants that have other values in this world. Raises AttributeError for one that does not exist."""
    for name, value in wanted.items():
        module, _, constant = name.rpartition(".")
        owner = importlib.import_module(module)
        getattr(owner, constant)
        yield (owner, constant), value


@contextmanager
def _silent() -> Iterator[None]:
    was = _LOG.level
    _LOG.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        _LOG.setLevel(was)
