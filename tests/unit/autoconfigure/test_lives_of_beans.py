"""What is entered, closed and cleaned up of beans, whatever ends them; starts that are made again, or not made yet."""

from __future__ import annotations

import threading

import anyio
import pytest

from rocketbox.errors import NotStartedError
from tests.support.framework.services import ServiceMaker

HEAD = """
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
import anyio
from rocketbox import RocketBox, bean

app = RocketBox("desk", scan=[__name__])
events = []
"""


MANAGERS = """
class Both:
    def __enter__(self):
        events.append("enters")
        return "another object"

    def __exit__(self, *error):
        events.append(f"leaves, told {error[1]}")

class Async:
    async def __aenter__(self):
        events.append("enters")
        return "another object"

    async def __aexit__(self, *error):
        events.append(f"leaves, told {error[1]}")

class Closes(Both):
    def close(self):
        events.append("closes")
"""


@pytest.mark.anyio
@pytest.mark.parametrize("marked", ["class", "function", "async function"])
@pytest.mark.parametrize("name", ["Both", "Async"])
async def test_a_bean_that_is_a_context_manager_of_either_kind_is_entered_and_left(
    service: ServiceMaker, name: str, marked: str
) -> None:
    source = f"@bean\nclass Desk({name}): ...\n"
    if marked != "class":
        start = "async def" if marked == "async function" else "def"
        source = f"class Desk({name}): ...\n@bean\n{start} desk() -> Desk:\n    return Desk()\n"
    module = service(HEAD + MANAGERS + source, "")
    async with module.app as app:
        assert isinstance(app.get(module.Desk), module.Desk)
        assert module.events == ["enters"]
    assert module.events == ["enters", "leaves, told None"]


@pytest.mark.anyio
async def test_a_bean_with_close_is_closed_and_not_entered(service: ServiceMaker) -> None:
    """What ``with`` does for a connection of sqlite3, and many others, is a transaction."""
    module = service(HEAD + MANAGERS + "@bean\nclass Desk(Closes): ...\n", "")
    async with module.app:
        assert module.events == []
    assert module.events == ["closes"]


LOCK_OF_ANOTHER_LIBRARY = """
class Lock:
    def __init__(self):
        self._lock = threading.Lock()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.release()
"""


@pytest.mark.anyio
@pytest.mark.parametrize(
    "lock",
    ["Lock()", "threading.Lock()", "threading.RLock()", "threading.Condition()", "threading.Semaphore()",
     "multiprocessing.Lock()"],
)  # fmt: skip
async def test_a_lock_is_free_while_the_service_runs(service: ServiceMaker, lock: str) -> None:
    source = "import multiprocessing, threading\n" + LOCK_OF_ANOTHER_LIBRARY
    source += f"made = {lock}\nKind = type(made)\n@bean\ndef lock() -> Kind:\n    return made\n"
    module = service(HEAD + source, "")
    free = []
    async with module.app:
        other = threading.Thread(target=lambda: free.append(module.made.acquire(timeout=0)))
        other.start()
        other.join()
    assert free == [True]


@pytest.mark.anyio
@pytest.mark.parametrize("made", ["asyncio.Barrier(2)", "anyio.ResourceGuard()", "anyio.CancelScope()"])
async def test_what_waits_or_guards_when_it_is_entered_is_left_to_who_uses_it(service: ServiceMaker, made: str) -> None:
    source = f"import asyncio\nmade = {made}\nKind = type(made)\n@bean\ndef one() -> Kind:\n    return made\n"
    module = service(HEAD + source, "rocketbox.shutdown.timeout: 1s\n")
    with anyio.fail_after(1):
        async with module.app:
            if not made.startswith("asyncio"):
                with module.made:
                    pass


YIELDS = {
    "async generator": "@bean\nasync def desk() -> AsyncIterator[Desk]:\n",
    "generator": "@bean\ndef desk() -> Iterator[Desk]:\n",
    "async context manager": "@bean\n@asynccontextmanager\nasync def desk() -> AsyncIterator[Desk]:\n",
    "context manager": "@bean\n@contextmanager\ndef desk() -> Iterator[Desk]:\n",
}
NEXT = """
class Next: ...

@bean
async def further(desk: Desk) -> AsyncIterator[Next]:
    yield Next()
"""


@pytest.mark.anyio
@pytest.mark.parametrize("style", YIELDS)
async def test_what_stands_behind_a_yield_runs_when_the_stop_is_cut_short(service: ServiceMaker, style: str) -> None:
    body = "    yield Desk()\n    events.append('cleans up')\n"
    source = f"class Desk: ...\n{YIELDS[style]}{body}{NEXT}    await anyio.sleep_forever()\n"
    module = service(HEAD + source, "rocketbox.shutdown.timeout: 50ms\n")
    async with module.app:
        pass
    assert module.events == ["cleans up"]


@pytest.mark.anyio
async def test_a_scope_inside_of_a_bean_still_has_its_own_cancellation(service: ServiceMaker) -> None:
    source = """
class Desk: ...

async def fail():
    raise ValueError("no pager")

@bean
async def desk() -> AsyncIterator[Desk]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fail)
        yield Desk()
        events.append("never")
"""
    module = service(HEAD + source, "")
    with pytest.raises(ExceptionGroup) as caught:
        async with module.app:
            await anyio.sleep(1)
    assert str(caught.value.exceptions[0]) == "no pager"
    assert module.events == []


@pytest.mark.anyio
async def test_a_start_may_be_made_again_with_the_same_options(service: ServiceMaker) -> None:
    module = service(HEAD + "class Desk: ...\n@bean\nclass Other: ...\n", "")
    started = module.app.started(beans={module.Desk: (fake := module.Desk())})
    for _ in range(2):
        async with started as app:
            assert app is module.app
            assert app.get(module.Desk) is fake


def test_a_call_into_a_background_that_is_about_to_start_says_so(service: ServiceMaker) -> None:
    source = """
import threading
begins, goes_on = threading.Event(), threading.Event()

@app.on_startup
def begin() -> None:
    begins.set()
    goes_on.wait(10)

async def answer() -> int:
    return 42
"""
    module = service(HEAD + source, "")
    background = module.app.background()
    starting = threading.Thread(target=background.start)
    starting.start()
    try:
        assert module.begins.wait(10)
        with pytest.raises(NotStartedError, match=r"it is about to: call it when its start\(\) has returned"):
            background.call(module.answer)
    finally:
        module.goes_on.set()
        starting.join()
    assert background.call(module.answer) == 42
    background.stop()
