"""Reports a background task that has ended by an exception that it does not handle."""

import asyncio
from typing import Any


def report_failure(task: asyncio.Task[Any]) -> None:
    """Passes the exception of *task*, if there is one, to the handler of the event loop; for `add_done_callback`.

    It is a bug in this code: a task process ends and is restarted, instead of continuing without this task.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": f"the task {task.get_name()} failed", "exception": error, "task": task}
        )
