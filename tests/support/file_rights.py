"""Root without its power over files: what a file's mode forbids is forbidden, as it is for everybody else.

Linux keeps the power in two capabilities of each thread (capabilities(7): CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH). They
are put aside and taken back, which needs no other user and leaves root the owner of its folders.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["bound_to_file_modes"]

VERSION_3 = 0x2008_0522  # _LINUX_CAPABILITY_VERSION_3: 64 capabilities, in two words
OVER_FILES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Word(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def bound_to_file_modes() -> Iterator[None]:
    """Within the block this thread, and those that it starts, may do with files what their modes say.

    Skips the test where root cannot be bound: it has such a power on other systems too, but nothing that takes it.
    """
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root may do everything with files, and only Linux lets it do without")
    words = (_Word * 2)()
    _call("capget", words)
    before = words[0].effective
    words[0].effective = before & ~OVER_FILES
    _call("capset", words)
    try:
        yield
    finally:
        words[0].effective = before
        _call("capset", words)


def _call(name: str, words: ctypes.Array[_Word]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[name](ctypes.byref(_Header(VERSION_3, 0)), words) != 0:  # 0: this thread
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
