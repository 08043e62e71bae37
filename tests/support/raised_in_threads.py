"""What is raised by a function that may hang, and would hang the test with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["raised_in_a_thread"]

LONGEST = 60.0  # seconds


def raised_in_a_thread(function: Callable[[], object], let_go: threading.Event) -> BaseException:
    """What it raises within a minute, and while ``let_go`` is not set, which lets end whatever it waits for."""
    raised = list[BaseException]()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        thread.join(LONGEST)
        hangs = thread.is_alive()
    finally:
        let_go.set()
        thread.join()
    assert not hangs, f"it hangs: {raised}"
    (error,) = raised
    return error
