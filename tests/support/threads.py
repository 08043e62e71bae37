"""Threads that are all held: what must not wait for one is tried there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread

from rocketbox.remoting import asyncio_driver
from tests.support.waiting import until

__all__ = ["no_thread_left"]


@asynccontextmanager
async def no_thread_left() -> AsyncIterator[None]:
    """Inside, all threads that the loop and anyio give away are held, as by code that blocks for a connection."""
    go = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    tokens, limiter.total_tokens = limiter.total_tokens, 1
    if asyncio_driver.is_running():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, go.wait)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(anyio.to_thread.run_sync, go.wait))
            try:
                await until(lambda: not limiter.available_tokens)
                yield
            finally:
                go.set()
    finally:
        limiter.total_tokens = tokens
