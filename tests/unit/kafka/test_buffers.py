"""Memory is reused only when nothing refers to it any more."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_kafka.client.frames import GRAIN_BYTES, KEPT_MAX, UNUSED_MAX, Buffers


def test_unreferenced_buffer_is_reused():
    """A backlog is received into a few buffers, however many answers it takes."""
    buffers = Buffers()
    places = set()
    for _ in range(20):
        view = buffers.take(GRAIN_BYTES)
        places.add(id(view.obj))
        del view

    assert 1 == len(places)


@given(st.lists(st.tuples(st.integers(1, 3 * GRAIN_BYTES), st.integers(0, KEPT_MAX + 2)), max_size=30))
def test_referenced_buffer_is_not_reused(takes):
    """A batch that waits to be sent is a window into such a buffer."""
    buffers = Buffers()
    held: list[memoryview] = []
    for number, (size_bytes, let_go) in enumerate(takes):
        view = buffers.take(size_bytes)
        assert size_bytes == len(view)
        view[:1] = view[-1:] = bytes([number])
        held.append(view[: size_bytes // 2 + 1])
        del view
        assert len({id(one.obj) for one in held}) == len(held)
        del held[:let_go]


def test_nothing_is_kept_when_the_backlog_is_over():
    """Idle, a connector holds no megabytes."""
    buffers = Buffers()
    first = buffers.take(GRAIN_BYTES)
    place = first.obj
    del first
    for _ in range(UNUSED_MAX):
        buffers.unused()

    assert buffers.take(GRAIN_BYTES).obj is not place
