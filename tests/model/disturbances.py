"""What may happen while messages are on their way, each by a name; and when it does.

A disturbance is drawn, or enumerated, at the arrival of a message. It returns whether that message still arrives now.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tests.model.copier import Copier
from tests.model.loop import NEVER_S
from tests.model.network import Message

if TYPE_CHECKING:
    from tests.model.world import World

# At these messages something is decided; all others only say what is known.
DECIDING = frozenset({"Produce", "AddPartitionsToTxn", "EndTxn", "InitProducerId", "DescribeProducers"})
ALL = DECIDING | {"Fetch", "ListOffsets", "Metadata", "OffsetForLeaderEpoch"}

Act = Callable[[Message], bool]


class Disturbance(NamedTuple):
    """Something that may happen when a message arrives."""

    name: str
    act: Act


def cut(message: Message) -> bool:
    """The connection is lost with all that is on its way."""
    message.link.cut(arrives_after_s=NEVER_S)
    return False


def cut_after(message: Message) -> bool:
    """The connection is lost; the request is executed, and its response does not arrive."""
    message.link.cut()
    return message.is_request


def late(delay_s: float) -> Disturbance:
    """The connection is lost, and what was sent is executed after *delay_s*."""

    def act(message: Message) -> bool:
        message.link.cut(arrives_after_s=delay_s)
        return False

    return Disturbance(f"cut, arrives {delay_s:g} s later", act)


def hold(delay_s: float) -> Disturbance:
    """The network is slow."""

    def act(message: Message) -> bool:
        message.link.hold(delay_s)
        return False

    return Disturbance(f"held for {delay_s:g} s", act)


def freeze(seconds: float) -> Disturbance:
    """The process is stopped; what it has sent arrives."""

    def act(message: Message) -> bool:
        world = message.world
        world.freeze(_copier(message), seconds)
        return True

    return Disturbance(f"frozen for {seconds:g} s", act)


def freeze_machine(seconds: float) -> Disturbance:
    """The machine is stopped with the bytes in its buffers."""

    def act(message: Message) -> bool:
        world = message.world
        copier = _copier(message)
        world.freeze(copier, seconds)
        for link in world.network.of_process(copier):
            link.hold(seconds)
        return False

    return Disturbance(f"machine frozen for {seconds:g} s", act)


def kill(*, arrives_after_s: float = 0.0, restarts_after_s: float = 0.5, child: bool = True) -> Disturbance:
    """kill -9, and a new process in its place."""

    def act(message: Message) -> bool:
        world = message.world
        copier = _copier(message)
        is_now = message.is_request and not arrives_after_s
        world.kill(copier, arrives_after_s=arrives_after_s)
        world.after(restarts_after_s, lambda: _restart(world, copier, child=child))
        return is_now

    when = "never" if arrives_after_s == NEVER_S else f"after {arrives_after_s:g} s"
    return Disturbance(f"killed, bytes arrive {when}, restarted after {restarts_after_s:g} s", act)


def _restart(world: "World", copier: Copier, *, child: bool) -> None:
    if world.disturbances.is_over:
        return  # healing sees to it
    world.restart(copier, child=child)


def elect(message: Message) -> bool:
    """The leaders of the target die, others are elected cleanly: they have all that is replicated, and perhaps more."""
    world = message.world
    for at in world.partitions:
        log = world.copy_of(at).log
        world.elect(at, world.draws.choice((log.high_watermark, log.end)), is_restarted=True)
    return not message.link.is_cut


def hand_over(message: Message) -> bool:
    """Other replicas lead, and the old leaders live on: nothing is lost, connections stay."""
    world = message.world
    for at in world.partitions:
        world.elect(at, world.copy_of(at).log.high_watermark, is_restarted=False)
    return True


def depose(seconds: float) -> Disturbance:
    """The target's leaders are cut off from the others and do not know it: they answer clients from what they had."""

    def act(message: Message) -> bool:
        world = message.world
        for at in world.target_partitions:
            world.target.depose(at, seconds)
        return True

    return Disturbance(f"leader cut off for {seconds:g} s", act)


def elect_uncleanly(message: Message) -> bool:
    """The target loses the last third of its records."""
    world = message.world
    for at in world.partitions:
        log = world.copy_of(at).log
        world.elect(at, log.start + (log.end - log.start) * 2 // 3, is_restarted=True)
    return not message.link.is_cut


def lack_replicas(seconds: float) -> Disturbance:
    """The target's ISR is too small for a while: produce requests are refused before anything is appended."""

    def act(message: Message) -> bool:
        world = message.world
        for leader in world.target_leaders():
            leader.lacks_replicas = True

        def over() -> None:
            for leader in world.target_leaders():
                leader.lacks_replicas = False

        world.after(seconds, over)
        return True

    return Disturbance(f"too few replicas for {seconds:g} s", act)


def stall_replication(seconds: float) -> Disturbance:
    """The followers of the target do not follow for a while: nothing is acknowledged."""

    def act(message: Message) -> bool:
        world = message.world
        leaders = list(world.target_leaders())
        for leader in leaders:
            leader.replicates = False

        def over() -> None:
            for leader in leaders:
                if not leader.replicates:
                    leader.replicates = True
                    leader.replicate()

        world.after(seconds, over)
        return True

    return Disturbance(f"no replication for {seconds:g} s", act)


def slow_markers(seconds: float) -> Disturbance:
    """Markers of the next transactions take so long."""

    def act(message: Message) -> bool:
        world = message.world
        was, world.target.marker_s = world.target.marker_s, seconds

        def over() -> None:
            world.target.marker_s = min(was, world.target.marker_s)

        world.after(2 * seconds, over)
        return True

    return Disturbance(f"markers take {seconds:g} s", act)


def expire(message: Message) -> bool:
    """The target's brokers make their check for old producers now."""
    world = message.world
    world.target.tick_minutes()
    return True


def fail_over(message: Message) -> bool:
    """Another broker becomes the coordinator."""
    world = message.world
    world.target.coordinator.fail_over()
    return True


CUT = Disturbance("cut", cut)
CUT_AFTER = Disturbance("cut after execution", cut_after)
ELECT = Disturbance("clean election", elect)
ELECT_UNCLEANLY = Disturbance("unclean election", elect_uncleanly)
HAND_OVER = Disturbance("leadership moves", hand_over)
FAIL_OVER = Disturbance("coordinator fails over", fail_over)
EXPIRE = Disturbance("producers expire", expire)


def _copier(message: Message) -> Copier:
    process = message.link.process
    assert isinstance(process, Copier)
    return process


class Disturbances:
    """When something happens: at most so often, with that weight, at the messages that are named."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._kinds: Sequence[Disturbance] = ()
        self._apis: Collection[str] = ()
        self._weight = 0.0
        self._left = 0
        self._on_topics_only = False
        self.is_over = False
        self.happened: list[str] = []

    def begin(
        self,
        kinds: Sequence[Disturbance],
        *,
        at_most: int,
        weight: float = 0.02,
        apis: Collection[str] = DECIDING,
        on_topics_only: bool = False,
    ) -> None:
        """From now on each of *kinds* may happen. *on_topics_only*: not at what is said of positions and decisions."""
        self._kinds, self._left, self._weight, self._apis = kinds, at_most, weight, apis
        self._on_topics_only = on_topics_only

    def pause(self) -> None:
        """Nothing happens for now."""
        self._kinds = ()

    def end(self) -> None:
        """Nothing happens any more."""
        self.pause()
        self.is_over = True

    def let_pass(self, message: Message) -> bool:
        """Whether *message* arrives now."""
        if not self._kinds or not self._left or message.api not in self._apis:
            return True
        if message.link.is_cut or message.link.process.is_dead:
            return True
        if self._on_topics_only and message.is_internal:
            return True
        way = self._world.chooser.point(1 + len(self._kinds), self._weight)
        if not way:
            return True
        self._left -= 1
        kind = self._kinds[way - 1]
        self.happened.append(kind.name)
        what = "request" if message.is_request else "answer"
        self._world.tell(_copier(message), f"** {kind.name}, at the {what} of {message.api} **")
        return kind.act(message)
