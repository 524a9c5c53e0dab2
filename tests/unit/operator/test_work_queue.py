"""The work queue passes each key to one worker at a time, loses no change, and backs off after failures."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.backoff import JITTER
from mirrorflow_operator.work_queue import BACKOFF_MAX_S, BACKOFF_MIN_S, INTERVAL_S, WorkQueue


@dataclass(slots=True)
class QueueClock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class QueueWithClock:
    clock: QueueClock = field(default_factory=QueueClock)
    queue: WorkQueue[str] = field(init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(clock=self.clock)


def test_many_requests_for_a_key_are_one_pass():
    case = QueueWithClock()
    for _ in range(1_000):
        case.queue.add("a")

    assert case.queue.take() == "a"
    case.queue.done("a")
    case.clock.now_s += 3_600
    assert case.queue.take() is None


def test_a_key_added_during_its_pass_is_taken_again_after_the_pass():
    case = QueueWithClock()
    case.queue.add("a")
    case.queue.take()
    case.queue.add("a")
    case.clock.now_s += 10

    assert case.queue.take() is None
    case.queue.done("a")
    assert case.queue.take() == "a"


def test_a_key_has_at_most_one_pass_per_interval():
    case = QueueWithClock()
    case.queue.add("a")
    case.queue.take()
    case.queue.done("a")
    case.queue.add("a")

    assert case.queue.take() is None
    case.clock.now_s += INTERVAL_S
    assert case.queue.take() == "a"


def test_backoff_grows_to_a_bound_and_success_resets_it():
    case = QueueWithClock()
    waits = []
    for _ in range(12):
        case.queue.add("a")
        case.clock.now_s += 2 * BACKOFF_MAX_S
        assert case.queue.take() == "a"
        waits.append(case.queue.failed("a"))

    growing = waits[:6]
    assert growing == sorted(growing)
    assert waits[0] == pytest.approx(BACKOFF_MIN_S, rel=JITTER + 0.01)
    assert waits[-1] == pytest.approx(BACKOFF_MAX_S, rel=JITTER + 0.01)
    case.clock.now_s += 2 * BACKOFF_MAX_S
    case.queue.take()
    case.queue.done("a")
    case.queue.add("a")
    case.clock.now_s += 1
    case.queue.take()
    assert case.queue.failed("a") == pytest.approx(BACKOFF_MIN_S, rel=JITTER + 0.01)


def test_retry_after_is_respected():
    """Retry-After is the minimum wait even if the backoff is shorter."""
    case = QueueWithClock()
    case.queue.add("a")
    case.queue.take()

    assert case.queue.failed("a", 7.0) == 7.0
    case.clock.now_s += 6.9
    assert case.queue.take() is None
    case.clock.now_s += 0.2
    assert case.queue.take() == "a"


@pytest.mark.parametrize("retry_after_s", [86_400.0, float("inf"), float("nan")])
def test_a_retry_after_without_reason_waits_no_longer_than_the_backoff(retry_after_s: float):
    """A proxy before the API server may send any; the server may be back within seconds, which no event reports."""
    case = QueueWithClock()
    case.queue.add("a")
    case.queue.take()

    assert case.queue.failed("a", retry_after_s) == BACKOFF_MAX_S
    case.clock.now_s += BACKOFF_MAX_S + 0.1
    assert case.queue.take() == "a"


def test_an_event_for_a_failing_key_ends_its_wait():
    """A user who has corrected the spec does not wait for the backoff of the previous spec."""
    case = QueueWithClock()
    case.queue.add("a")
    case.queue.take()
    for _ in range(10):
        case.queue.failed("a")
    case.clock.now_s += INTERVAL_S
    case.queue.add("a")

    assert case.queue.take() == "a"


def test_the_age_of_the_oldest_key_includes_a_hanging_pass():
    case = QueueWithClock()
    case.queue.add("a")
    assert case.queue.take() == "a"
    case.queue.add("b", 500)
    case.clock.now_s += 400

    assert case.queue.oldest_s() == 400
    case.queue.done("a")
    assert case.queue.oldest_s() == 0


def test_a_hanging_pass_differs_from_a_long_queue():
    """A long queue is no reason to restart the operator."""
    case = QueueWithClock()
    for number in range(100):
        case.queue.add(str(number))
    for _ in range(90):
        key = case.queue.take()
        assert key is not None
        case.clock.now_s += 10
        case.queue.done(key)
        assert case.queue.stuck_s() <= 10
    assert case.queue.oldest_s() == 900

    case.clock.now_s += 400
    assert case.queue.stuck_s() == 410  # no worker takes the remaining keys
    case.queue.take()
    assert case.queue.stuck_s() == 0
    case.clock.now_s += 400
    assert case.queue.stuck_s() == 400  # a pass that never ends


def test_a_waiting_worker_wakes_when_something_is_due():
    async def wait() -> str:
        queue: WorkQueue[str] = WorkQueue(interval_s=0)
        worker = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("late", 0.05)
        queue.add("now", 0.01)
        return await asyncio.wait_for(worker, 5)

    assert asyncio.run(wait()) == "now"


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "later", "take", "done", "failed", "forget", "wait")), st.sampled_from("abc")
    ),
    max_size=80,
)


@given(_STEPS)
def test_no_key_is_lost_or_taken_by_two_workers_at_once(steps: list[tuple[str, str]]):
    """A key that was added after it was taken is taken again."""
    case = QueueWithClock()
    working: set[str] = set()
    pending: set[str] = set()
    for step, key in steps:
        match step:
            case "add":
                case.queue.add(key)
                pending.add(key)
            case "later":
                case.queue.add(key, 30)
                pending.add(key)
            case "take":
                taken = case.queue.take()
                if taken is not None:
                    assert taken not in working
                    working.add(taken)
                    pending.discard(taken)
            case "done" if key in working:
                case.queue.done(key)
                working.discard(key)
            case "failed" if key in working:
                case.queue.failed(key)
                working.discard(key)
                pending.add(key)
            case "forget":
                case.queue.forget(key)
                pending.discard(key)
            case _:
                case.clock.now_s += 1
    for key in list(working):
        case.queue.done(key)
    case.clock.now_s += 10_000
    rest = set()
    while (key_ := case.queue.take()) is not None:
        rest.add(key_)
    assert rest == pending
