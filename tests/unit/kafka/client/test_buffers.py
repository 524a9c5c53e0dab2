"""A buffer is reused only when nothing refers to it."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_kafka.client.frames import GRAIN_BYTES, KEPT_MAX, UNUSED_MAX, Buffers


def test_an_unreferenced_buffer_is_reused():
    """Many responses of a backlog therefore use few buffers."""
    buffers = Buffers()
    addresses = set()
    for _ in range(20):
        view = buffers.take(GRAIN_BYTES)
        addresses.add(id(view.obj))
        del view

    assert 1 == len(addresses)


@given(st.lists(st.tuples(st.integers(1, 3 * GRAIN_BYTES), st.integers(0, KEPT_MAX + 2)), max_size=30))
def test_a_referenced_buffer_is_not_reused(takes):
    """A batch that waits to be sent is a view into such a buffer."""
    buffers = Buffers()
    held: list[memoryview] = []
    for number, (size_bytes, released) in enumerate(takes):
        view = buffers.take(size_bytes)
        assert size_bytes == len(view)
        view[:1] = view[-1:] = bytes([number])
        held.append(view[: size_bytes // 2 + 1])
        del view
        assert len({id(held_view.obj) for held_view in held}) == len(held)
        del held[:released]


def test_buffers_are_released_after_a_backlog():
    """An idle connector must not keep megabytes."""
    buffers = Buffers()
    first = buffers.take(GRAIN_BYTES)
    buffer = first.obj
    del first
    for _ in range(UNUSED_MAX):
        buffers.unused()

    assert buffers.take(GRAIN_BYTES).obj is not buffer
