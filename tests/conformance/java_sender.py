"""The program ``Sends`` of ``java/``: a producer of Apache's Java client that sends what it is told line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.conformance.apache import NEWEST
from tests.conformance.java_exchange import SMALL_AND_QUICK
from tests.conformance.java_program import JavaProgram

__all__ = ["JavaSender", "Sent", "java_sender"]


class Sent(NamedTuple):
    """What the Java client was answered."""

    ids: tuple[str, ...]
    queue_id: str
    queue_offset: str
    handle: str | None


class JavaSender:
    """One run of it."""

    def __init__(self, program: JavaProgram, name_server: str) -> None:
        self._program = program
        self.name_server = name_server

    def tell(self, *words: object) -> str:
        """Its answer to a line."""
        self._program.tell(" ".join(map(str, words)))
        return self._program.told.readline().strip()

    def send(self, *words: object) -> Sent:
        answer = self.tell(*words).split(" ")
        assert answer[0] == "sent", (words, answer, self._program.errors)
        _, ids, queue_id, queue_offset, handle = answer
        return Sent(tuple(ids.split(",")), queue_id, queue_offset, None if handle == "-" else handle)


@contextmanager
def java_sender(
    name_server: str, group: str, version: str = NEWEST, *, options: Sequence[str] = ()
) -> Iterator[JavaSender]:
    """A producer of the group with the client of a version; name server ``-``: Java's ``options`` tell which."""
    arguments = ("rocketbox.Sends", name_server, group)
    with JavaProgram(*arguments, options=(*SMALL_AND_QUICK, *options), version=version) as program:
        assert program.told.readline().strip() == "started", program.errors
        yield JavaSender(program, name_server)
