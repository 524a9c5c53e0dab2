"""Handles the signals of a switchover, which may end while applications cannot write."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

from mirrorflow_cli.errors import EXIT_SIGNAL_BASE, FailedError
from mirrorflow_cli.switchover_report import StepDisplay, print_if_read
from mirrorflow_core.switchover.states import PROMOTED


@contextlib.contextmanager
def rolling_back_at_signals(
    request_rollback: Callable[[], None], display: StepDisplay
) -> Iterator[list[int]]:
    """Rolls back at the first signal, or continues if it has promoted, and ends at the second; returns the signals.

    A terminal that is closed is a first signal only.
    """
    signals: list[int] = []
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    assert running is not None

    def note(number: int) -> None:
        if number == signal.SIGHUP and signals:
            return  # the kernel and the shell may both send it
        signals.append(number)
        if len(signals) > 1:
            running.cancel()
            return
        record = display.record
        if record is not None and record.state in PROMOTED:
            # A hook that leads clients to the other cluster may be running: to stop it would leave them between both.
            sentence = f"{record.to} is promoted, so the switchover can only be completed, and continues; once more ends at once."
            print_if_read(sentence)
            return
        request_rollback()
        waits = (
            f", which waits for {record.source} if that was fenced" if record and record.is_unplanned else ""
        )
        print_if_read(f"Rolls back{waits}; once more ends at once, and leaves writes refused.")

    # With nohup, a terminal that is closed changes nothing.
    is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *(() if is_hangup_ignored else (signal.SIGHUP,)))
    for number in numbers:
        loop.add_signal_handler(number, note, number)
    try:
        yield signals
    except asyncio.CancelledError:
        if not signals:
            raise
        state = "" if display.record is None else f" It is in state {display.record.state.value}."
        raise FailedError(
            f"The switchover has not ended.{state} The same command continues it; before Promoting, `mirrorflow switchover rollback` undoes it.",
            status=EXIT_SIGNAL_BASE + signals[0],
        ) from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
