"""The error tree of rocketbox, and the three signals a handler may raise.

Every error builds its own message from the data it holds, names the setting or the place, and says what would be right.
Foreign errors (OSError, pydantic, pyspark) are translated once, at the edge where they come in, with ``from``.

The codes a broker answers with are those of Apache RocketMQ 5.x, ``ResponseCode`` and ``RemotingSysResponseCode``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rocketbox.durations import parse_time
from rocketbox.safe_repr import said_by_a_peer

if TYPE_CHECKING:
    from pathlib import Path

    from rocketbox.message import MessageExt, SendResult

__all__ = [
    "AccessDeniedError",
    "BatchFailed",
    "BrokerError",
    "ClientError",
    "ClientStateError",
    "CodecMissingError",
    "ConfigurationError",
    "ConnectError",
    "ConnectionClosedError",
    "CredentialsError",
    "Finding",
    "ForkedError",
    "HandlerError",
    "HookFailedError",
    "InvalidGroupError",
    "InvalidMessageError",
    "LocalProtocolError",
    "NoNameServerError",
    "NoRouteError",
    "NotDurableError",
    "NotStartedError",
    "OtherLoopError",
    "Reject",
    "ReplyError",
    "ReplyTimeoutError",
    "RemoteProtocolError",
    "RemotingError",
    "RequestTimeoutError",
    "RetryLater",
    "RocketBoxError",
    "SendManyError",
    "SendTimeoutError",
    "StoreBusyError",
    "StoreCorruptError",
    "StoreError",
    "StoreFailedError",
    "StoreFullError",
    "StoreLockedError",
    "StoreStalledError",
    "TooManyRequestsError",
    "UnknownClusterError",
]


class RocketBoxError(Exception):
    """The root of everything rocketbox raises as an error."""


# --- configuration -----------------------------------------------------------------------------------------------

SHOW_TRACEBACK = "--debug shows the traceback"  # what there is to do about a finding, where a command shows it


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong before the start: what, where it was written (``file:line``), and what to do."""

    what: str
    where: str | None = None
    fix: str | None = None

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f"\n    where: {self.where}"
        if self.fix:
            text += f"\n    fix:   {self.fix}"
        return text


class ConfigurationError(RocketBoxError):
    """The application cannot start; ``findings`` holds everything that was found wrong, together."""

    def __init__(self, findings: Sequence[Finding] | Finding) -> None:
        self.findings: tuple[Finding, ...] = (findings,) if isinstance(findings, Finding) else tuple(findings)
        shown = [_below_its_traceback(each) for each in self.findings]
        super().__init__("\n".join(f"{number}. {finding}" for number, finding in enumerate(shown, 1)))


def _below_its_traceback(finding: Finding) -> Finding:
    """A finding as an error's own text tells it: where that is read, the traceback is there."""
    fix = finding.fix
    if fix is None or not fix.endswith(SHOW_TRACEBACK):
        return finding
    return replace(finding, fix=fix.removesuffix(SHOW_TRACEBACK).rstrip("; ") or None)


# --- remoting ----------------------------------------------------------------------------------------------------


class RemotingError(RocketBoxError):
    """Something between two processes failed; whether the other side acted is said by the subclass."""


class ConnectError(RemotingError):
    """No connection to ``address`` came about; nothing was sent."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"cannot connect to {address}: {reason}")


class ConnectionClosedError(RemotingError):
    """The connection broke while an answer was awaited: the other side may have acted on the request."""

    def __init__(self, address: str, reason: str = "closed by the other side") -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"the connection to {address} is closed: {reason}")


class RequestTimeoutError(RemotingError):
    """No answer within ``timeout`` seconds: the other side may have acted on the request, or may still do so."""

    def __init__(self, address: str, what: str, timeout: float) -> None:
        self.address = address
        self.what = what
        self.timeout = timeout
        super().__init__(f"{what} to {address} was not answered within {timeout:g} s; it may have been carried out")


class NoNameServerError(RemotingError):
    """None of several name servers answered; ``failures`` says why, by their addresses."""

    def __init__(self, failures: Mapping[str, RemotingError]) -> None:
        self.failures = dict(failures)
        super().__init__(f"no name server answers: {'; '.join(map(str, failures.values()))}")


class RemoteProtocolError(RemotingError):
    """The other side sent bytes that are not RocketMQ's remoting protocol; the connection is closed."""


class LocalProtocolError(RemotingError):
    """What was to be sent does not fit the remoting protocol's limits; nothing was sent, and trying again is no use."""


class CodecMissingError(RemoteProtocolError):
    """A message is compressed in a way that this process cannot read; another one may, or this one when mended."""

    def __init__(self, codec: str, fix: str) -> None:
        self.codec = codec
        super().__init__(f"the body is compressed with {codec}, which cannot be read here: {fix}")


class TooManyRequestsError(RemotingError):
    """A bound on requests in flight was reached and no place became free in time; nothing was sent."""

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        super().__init__(f"{what}: all {limit} places are taken; send less at once or raise the limit")


class BrokerError(RocketBoxError):
    """A name server or broker answered with an error code (Apache's ``ResponseCode``).

    ``remark`` is what it said about it, as it came; the text of the error has the beginning of that, on one line.
    """

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        self.code = code
        self.remark = remark
        self.address = address
        super().__init__(f"{address} answered code {code}: {self.shown_remark}")

    @property
    def shown_remark(self) -> str:
        """The remark as logs show it."""
        return said_by_a_peer(self.remark or "no remark")


class AccessDeniedError(BrokerError):
    """A server refused a request because of who sent it: no keys, wrong ones, or a user who may not do this.

    ``who`` is the beginning of the user's access key (None: the request was not signed). ``permission`` is what the
    user lacks (PUB, SUB, GET, ADMIN and the like) and ``resource`` on what: ``topic departures``, ``group board``. Both
    are None where the server does not say, and where it does not take the keys, which ``wrong_keys`` says.
    The access key itself is not in the remark: it is cut to ``who``.
    """

    def __init__(
        self,
        code: int,
        remark: str | None,
        address: str,
        *,
        who: str | None = None,
        permission: str | None = None,
        resource: str | None = None,
        wrong_keys: bool = False,
    ) -> None:
        super().__init__(code, remark, address)
        self.who = who
        self.permission = permission
        self.resource = resource
        self.wrong_keys = wrong_keys
        self.args = (f"{address} denies access: {self.missing} (code {code}: {self.shown_remark}); {self._fix()}",)

    @property
    def missing(self) -> str:
        """What the user lacks, in a few words: the same for all requests that one permission would let through."""
        user = f"user {self.who}" if self.who is not None else "a client without keys"
        if self.wrong_keys:
            return f"the keys of {user} are not taken" if self.who is not None else "the request is not signed"
        if self.resource is None:
            return f"{user} may not do this" + (f", which takes {self.permission}" if self.permission else "")
        return f"{user} lacks {self.permission or 'a permission'} on {said_by_a_peer(self.resource)}"

    def _fix(self) -> str:
        keys = (
            "rocketmq.access-key and rocketmq.secret-key (of a further cluster rocketmq.clusters.NAME.access-key ...), "
            "credentials= of ClientOptions"
        )
        if self.wrong_keys or self.who is None:
            return f"give the client the keys of a user whom the server knows: {keys}"
        return f"let an administrator give that to the user, or give the client another user's keys: {keys}"


class CredentialsError(RocketBoxError):
    """There are no keys to sign requests with: a file cannot be read, or a provider fails. It shows none of them."""


# --- client ------------------------------------------------------------------------------------------------------


class ClientError(RocketBoxError):
    """The client refuses, or cannot do, what was asked; nothing was sent."""


class HandlerError(RocketBoxError):
    """No handler of a message ended as one may, or there is none; the message has failed."""


class InvalidMessageError(ClientError):
    """A message breaks a limit or rule of RocketMQ."""


class InvalidGroupError(ClientError):
    """A producer or consumer group has a name that RocketMQ does not take, or that is in use already."""

    def __init__(self, group: str, role: str, reason: str) -> None:
        self.group = group
        self.role = role
        super().__init__(f"{role} group {group!r} {reason}")


class HookFailedError(ClientError):
    """An RPC hook of the client raised what is no RocketBoxError before a request; that is the cause of this one."""

    def __init__(self, hook: object, error: BaseException) -> None:
        self.hook = hook
        super().__init__(f"the hook {type(hook).__name__} failed with {error!r} before a request; nothing was sent")


class NoRouteError(ClientError):
    """No name server knows a broker for ``topic`` (Apache's client code 10005)."""

    def __init__(
        self, topic: str, name_servers: Sequence[str], detail: str = "", *, namespace: str | None = None
    ) -> None:
        self.topic = topic
        self.name_servers = tuple(name_servers)
        asked = ", ".join(self.name_servers) or "none configured"
        of_namespace = f" of namespace {namespace}" if namespace else ""
        super().__init__(
            f"no route for topic {topic!r}{of_namespace} at name server {asked}"
            + (f": {detail}" if detail else "; create the topic, or let the broker create topics automatically")
        )


class UnknownClusterError(ClientError):
    """No broker of a cluster of that name is known to the name server; ``known`` are the clusters of others."""

    def __init__(self, cluster: str, known: Sequence[str]) -> None:
        self.cluster = cluster
        self.known = tuple(known)
        super().__init__(f"there is no cluster {cluster!r}; the name server knows {', '.join(known) or 'none'}")


class ClientStateError(ClientError):
    """A client object was used in a state that does not allow it (closed, started twice, wrong thread)."""


class NotStartedError(ClientStateError):
    """A client object was used outside its ``async with``."""

    def __init__(self, what: str, fix: str = "use it inside 'async with'") -> None:
        self.what = what
        super().__init__(f"{what} is not started; {fix}")


class OtherLoopError(ClientStateError):
    """A service was used in another event loop than that in which it was started; nothing was sent."""

    def __init__(self, name: str, thread: str, here: str) -> None:
        self.name = name
        if thread == here:
            super().__init__(
                f"{name} was started in an event loop that does not run now, and is used in another one, in the "
                f"same thread ({here!r}); nothing was sent. Start and end it with 'async with' in each loop: every "
                "asyncio.run() is one"
            )
            return
        super().__init__(
            f"{name} was started in the event loop of thread {thread!r} and is used in another one, in {here!r}; "
            "nothing was sent. Threads send by template.blocking, or hand calls over to its loop: by "
            "anyio.from_thread.run(producer.send, message) where anyio started them, else by a BlockingPortal"
        )


class ForkedError(ClientStateError):
    """A service was used in a fork of the process that started it: threads and connections do not come along."""

    def __init__(self, name: str, process: int) -> None:
        self.name = name
        self.process = process
        super().__init__(
            f"{name} was started in process {process}, and this is a fork of it, without its threads and connections; "
            "start it after the fork: in gunicorn's post_fork, in Celery's worker_process_init"
        )


class SendTimeoutError(RequestTimeoutError):
    """No broker acknowledged the message in time. It may be stored; sending it again may then duplicate it."""

    def __init__(self, address: str, msg_id: str, timeout: float, tries: Sequence[str]) -> None:
        super().__init__(address, f"the send of message {msg_id}", timeout)
        self.msg_id = msg_id
        self.tries = tuple(tries)
        self.args = (
            f"message {msg_id} was not acknowledged within {timeout:g} s (tried: {'; '.join(tries) or 'none'}); it may "
            "have been stored, and sending it again would then duplicate it (rocketmq.producer.send-message-timeout "
            "says how long to wait)",
        )


class ReplyTimeoutError(RequestTimeoutError):
    """No reply to a request came in time (Apache's client code 10006). The request may have been carried out, or may
    still be: who repeats it may have it carried out twice."""

    def __init__(self, topic: str, msg_id: str, timeout: float) -> None:
        super().__init__(f"topic {topic}", f"request {msg_id}", timeout)
        self.topic = topic
        self.msg_id = msg_id
        self.args = (
            f"request {msg_id} to topic {topic!r} got no reply within {timeout:g} s; it may have been carried out. "
            "Does a consumer take that topic and tag, and does its listener return a value?",
        )


class ReplyError(RocketBoxError):
    """Who was to answer a request has failed with an exception: ``error_class`` is its class (``desk.SoldOut``),
    ``message`` its text. ``reply`` is the whole message by which that was told.
    """

    def __init__(self, error_class: str, message: str, reply: MessageExt | None = None) -> None:
        self.error_class = error_class
        self.message = message
        self.reply = reply
        told = said_by_a_peer(f"{error_class}: {message}")
        super().__init__(f"the request has failed where it was answered: {told}")


class SendManyError(RocketBoxError):
    """Some messages of a ``send_many``, or of a ``send_batch`` that took several requests, failed; others are stored.

    ``results`` has one entry for each message, in order: its SendResult, or the error that its send raised.
    """

    def __init__(self, results: Sequence[SendResult | Exception]) -> None:
        self.results = tuple(results)
        self.errors = {index: entry for index, entry in enumerate(self.results) if isinstance(entry, Exception)}
        index, first = next(iter(self.errors.items()))
        super().__init__(f"{len(self.errors)} of {len(self.results)} messages failed; message {index}: {first}")


class NotDurableError(RocketBoxError):
    """The message is stored, but not as safely as was asked; sending it again duplicates it.

    ``result`` says what the broker did. ``rocketmq.producer.accept-weak-ack: true`` returns such results instead.
    """

    def __init__(self, result: SendResult) -> None:
        self.result = result
        super().__init__(
            f"message {result.msg_id} is stored with {result.status.name} only; sending it again would duplicate it "
            "(rocketmq.producer.accept-weak-ack accepts this)"
        )


# --- store -------------------------------------------------------------------------------------------------------


class StoreError(RocketBoxError):
    """The store on disk cannot do what was asked."""


class StoreCorruptError(StoreError):
    """A file of the store is damaged, and it is no torn tail; the start is refused, and nothing was cut off."""

    def __init__(self, file: Path | str, offset: int, reason: str) -> None:
        self.file = str(file)
        self.offset = offset
        self.reason = reason
        super().__init__(
            f"{file} is damaged at byte {offset}: {reason}. Nothing was changed: see what else is damaged with "
            "`rocketbox store check --data-dir DIR`, then restore the file from a copy, or let `rocketbox store "
            "repair` go on without what is lost"
        )


class StoreLockedError(StoreError):
    """Another broker, ours or Apache's, holds the store's directory."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = str(directory)
        super().__init__(f"{directory} is in use by another broker; stop it, or choose another data-dir")


class StoreFailedError(StoreError):
    """A write or sync failed; the store accepts no more writes until it is reopened."""


class StoreFullError(StoreError):
    """The disk (or a limit of the system: open files, quota) has no room for a write; nothing of it was written.

    The store takes writes again by itself when there is room. ``free_bytes`` is what the disk has left, None when
    that is not known.
    """

    def __init__(self, what: str, reason: str, free_bytes: int | None = None) -> None:
        self.what = what
        self.reason = reason
        self.free_bytes = free_bytes
        room = "" if free_bytes is None else f"; {free_bytes} bytes are free"
        super().__init__(
            f"the store takes no messages now: {what} found no room ({reason}{room}). "
            "Reads go on, and so do writes when there is room again"
        )


class StoreStalledError(StoreError):
    """The disk became full while a message was being written: it is written again when there is room.

    It may be stored then, and also when it is sent once more. ``reason`` is what the disk said.
    """

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(
            f"the disk was full while the message was written ({what}: {reason}); it is kept, and may be stored when "
            "there is room again"
        )


class StoreBusyError(StoreError):
    """More bytes wait for the disk than the store may hold; send later."""

    def __init__(self, waiting_bytes: int, most: int, setting: str) -> None:
        self.waiting_bytes = waiting_bytes
        self.most = most
        self.setting = setting
        super().__init__(f"{waiting_bytes} bytes of messages wait for the disk; {setting} is {most}")


# --- signals -----------------------------------------------------------------------------------------------------

LONGEST_RETRY = timedelta(hours=2)  # the longest of RocketMQ's delay levels


class Reject(Exception):  # noqa: N818 - a signal a handler raises, not an error
    """Sends the message to the dead-letter queue at once; ``reason`` is logged."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class RetryLater(Exception):  # noqa: N818 - a signal
    """Brings the message back after ``delay``; by the next delay level that is not shorter where a broker is older
    than RocketMQ 5.0, and for none the shortest of them, 1 s.

    ``delay`` is a timedelta, text with a unit (``"30s"``, ``"1m30s"``), or a number of seconds, of at most two hours:
    the longest level. Raises ValueError for what is no such time. Orderly consumers pause the queue instead, for at
    most 30 s.
    """

    delay = timedelta(0)  # of a subclass that does not call this class' __init__

    def __init__(self, delay: timedelta | float | str) -> None:
        try:
            self.delay = parse_time(delay)
        except ValueError as error:
            raise ValueError(f"RetryLater({delay!r}): {error}, a timedelta, or a number of seconds") from None
        if not timedelta(0) <= self.delay <= LONGEST_RETRY:
            raise ValueError(
                f"RetryLater({delay!r}): a message comes back after at most 2h, RocketMQ's longest delay level, and "
                "not before now; write a time from 0s to 2h"
            )
        super().__init__(f"retry after {self.delay}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, vars(self))


class BatchFailed(Exception):  # noqa: N818 - a signal
    """In a batch: the messages before ``index`` are consumed, that one and those after it come back."""

    index = 0  # of a subclass that does not call this class' __init__: all come back

    def __init__(self, index: int, reason: str = "") -> None:
        if index < 0:
            raise ValueError(f"an index into the batch cannot be negative: {index}")
        self.index = index
        self.reason = reason
        super().__init__(f"the batch failed at message {index}" + (f": {reason}" if reason else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, vars(self))


def _again(kind: type[Exception], args: tuple[Any, ...], values: dict[str, Any]) -> Exception:
    """A signal that comes from another process, where a handler may compute: as it was, whatever its class asks for."""
    signal = kind.__new__(kind, *args)
    vars(signal).update(values)
    return signal
