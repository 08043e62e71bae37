"""The file ``lock``: whose run was the last in a store's directory, ours or another broker's.

Our mark in the checkpoint (``checkpoint``) says how far the log was synced, and so what may be cut off as a torn tail.
It is true only as long as nobody else has written to the log. Another broker leaves the mark as it is until it first
writes its own checkpoint, which may be a minute after its first message. But every Apache broker overwrites the first
four bytes of ``lock`` with the text ``lock``, and syncs them, in ``start()``: after it has locked the file, and before
it takes a message (``abort`` would not do: 4.9.7 leaves a text that is there). So the file holds, from its first byte,

    "rocketbox " run "\\n"          run: 16 hexadecimal digits, random, not 0

and the mark holds only if it bears the same run. The number belongs to all our runs one after the other, it changes
where another broker's lie between: then nothing has to be written at an ordinary start, and there is no moment at
which lock file and mark could disagree. At a start, ``lock`` -> what it holds, ``mark`` -> the run in it:

    lock      mark        the last run was   and so
    X         X           ours               the mark holds
    another   any         another broker's   the mark counts as none; a new run Y, see below
    X         none        unknown            the same (the checkpoint was lost, or damaged)
    X         Z           unknown            the same (one of the two files comes from another copy)

Where the mark counts as none, the start goes these steps, each synced before the next. After a crash behind each:

    1 recovery (which believes no mark)     lock, mark as before: the same again
    2 ``abort`` is there                    lock, mark as before: the same again
    3 the checkpoint, with a mark of Y      lock is not Y: the same again
    4 the lock file says Y                  the mark holds, all it says is true since 3
    5 messages are taken

So a foreign run is never taken for ours: an Apache broker that took a message has synced ``lock`` before, and only
step 4 writes Y, when what it left was recovered. And ours is never taken for a foreign one: an ordinary start writes
neither. A lock file torn in step 4 is no Y, and nothing was stored since.

A directory that is copied as a whole bears the same run in both places, and each copy goes on by itself. Where files of
several copies are mixed, the mark may hold though another broker's records are there; therefore no whole record is
ever taken for a torn one, with the mark or without (``log_end``).

Source: Apache RocketMQ 4.9.7, 5.3.3 and 5.5.0 ``DefaultMessageStore.start`` (``lockFile.getChannel().write``, from
byte 0 of a file opened without truncation).
"""

from __future__ import annotations

import re

__all__ = ["decode_lock_file", "encode_lock_file"]


def encode_lock_file(run: int) -> bytes:
    return b"rocketbox %016x\n" % run


def decode_lock_file(data: bytes) -> int | None:
    """The run that a lock file names; None when another broker has locked the directory since, or nobody has."""
    found = re.match(rb"rocketbox ([0-9a-f]{16})\n", data)
    return int(found[1], 16) if found else None
