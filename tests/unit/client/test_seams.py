"""The two seams of the client, each with a toy user: middleware around sends and handlers, and hooks on requests."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest

from rocketbox.client import (
    ClientOptions,
    ConsumeContext,
    ConsumeNext,
    MQClientInstance,
    Producer,
    SendContext,
    SendNext,
    SendRequest,
)
from rocketbox.client.middleware import wrap_handler
from rocketbox.errors import BrokerError, ClientError, HandlerError, InvalidMessageError, Reject, SendManyError
from rocketbox.message import Message, MessageExt, SendResult, decode_properties
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand, encode_ext_fields
from rocketbox.protocol.prepared_sends import SendTemplate
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


# --- around sends -------------------------------------------------------------------------------------------------


class Tracing:
    """A toy of a trace: gives each message the id of a span, and notes how its send ended."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name = name
        self.told = told

    async def __call__(self, context: SendContext, call_next: SendNext) -> SendResult | None:
        context.messages = [
            replace(message, properties={**message.properties, self.name: "span"}) for message in context.messages
        ]
        self.told.append(f"{self.name} before")
        try:
            result = await call_next(context)
        except InvalidMessageError:
            self.told.append(f"{self.name} failed")
            raise
        self.told.append(f"{self.name} {result.status.name if result else 'unknown'}")
        return result


async def test_middleware_wraps_every_kind_of_send_the_first_one_outermost() -> None:
    told: list[str] = []
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(
            cluster, client={"send_middleware": (Tracing("one", told), Tracing("two", told))}
        ) as producer:
            await producer.send(Message("T", b"x"))
            assert told == ["one before", "two before", "two SEND_OK", "one SEND_OK"]
            await producer.send_one_way(Message("T", b"x"))
            assert told[4:] == ["one before", "two before", "two unknown", "one unknown"]
            await producer.send_many([Message("T", b"x"), Message("T", b"x")])
            assert len(told) == 16
            await producer.send_batch([Message("T", b"x"), Message("T", b"x")])
            assert len(told) == 20
            with pytest.raises(InvalidMessageError):
                await producer.send(Message("T", b""))
            assert told[-2:] == ["two failed", "one failed"]
            await settle(40)
        singles = [request for request in cluster.broker.sends if request.code == RequestCode.SEND_MESSAGE_V2]
        assert len(singles) == 4
        for request in singles:
            properties = decode_properties(request.ext_fields["i"].encode())
            assert (properties["one"], properties["two"]) == ("span", "span")


async def test_middleware_that_loses_the_result_the_message_or_the_time_is_told_so() -> None:
    async def forgets(context: SendContext, call_next: SendNext) -> None:
        await call_next(context)

    async def empties(context: SendContext, call_next: SendNext) -> SendResult | None:
        context.messages = []
        return await call_next(context)

    async def mistakes(context: SendContext, call_next: SendNext) -> Any:
        await call_next(context)
        return "sent"

    async def hurries(context: SendContext, call_next: SendNext) -> SendResult | None:
        context.timeout = -0.5
        return await call_next(context)

    async def waits(context: SendContext, call_next: SendNext) -> SendResult | None:
        context.timeout = None  # type: ignore[assignment]
        return await call_next(context)

    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        for middleware, reason in (
            (forgets, "returned None"),
            (mistakes, "returned 'sent'"),
            (empties, "left 0 in its context"),
            (hurries, "left timeout=-0.5 in its context"),
            (waits, "left timeout=None in its context"),
        ):
            async with producer_of(cluster, client={"send_middleware": (middleware,)}) as producer:
                with pytest.raises(ClientError, match=reason) as caught:
                    await producer.send(Message("T", b"x"))
                assert type(caught.value) is ClientError
                with pytest.raises(SendManyError, match=reason):
                    await producer.send_many([Message("T", b"x")])


async def test_middleware_is_told_the_ids_of_messages_whatever_becomes_of_their_send() -> None:
    told: list[tuple[str, ...]] = []

    async def notes_ids(context: SendContext, call_next: SendNext) -> SendResult | None:
        context.msg_ids = ("of an earlier try",)
        try:
            return await call_next(context)
        finally:
            told.append(context.msg_ids)

    def id_of(request: RemotingCommand) -> str:
        return decode_properties(request.ext_fields["i"].encode())["UNIQ_KEY"]

    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, client={"send_middleware": (notes_ids,)}) as producer:
            result = await producer.send(Message("T", b"x"))
            await producer.send_one_way(Message("T", b"x"))
            results = await producer.send_batch([Message("T", b"x"), Message("T", b"x")])
            await settle(40)
            cluster.broker.on_send = lambda request: cluster.broker.store(request, ResponseCode.MESSAGE_ILLEGAL)
            with pytest.raises(BrokerError):
                await producer.send(Message("T", b"x"))
            with pytest.raises(InvalidMessageError):
                await producer.send(Message("T", b""))
        first, one_way, refused = map(id_of, cluster.broker.requested(RequestCode.SEND_MESSAGE_V2))
        assert result.msg_id == first
        assert told == [(first,), (one_way,), tuple(each.msg_id for each in results), (refused,), ()]


# --- around handlers ----------------------------------------------------------------------------------------------


async def test_middleware_wraps_handlers_and_sees_their_outcome() -> None:
    told: list[str] = []

    async def measuring(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        told.append(f"{context.consumer_group}: {len(context.messages)}")
        try:
            return await call_next(context)
        except Reject as rejected:
            told.append(f"rejected: {rejected}")
            raise

    async def handler(messages: list[MessageExt]) -> None:
        raise Reject("no delay reported")

    wrapped = wrap_handler("G", [measuring], handler)
    with pytest.raises(Reject):
        await wrapped([])
    assert told == ["G: 0", "rejected: no delay reported"]
    assert wrap_handler("G", [], handler) is handler, "none costs nothing"


async def test_a_middleware_that_forgets_to_return_loses_no_failure() -> None:
    async def forgets(context: ConsumeContext, call_next: ConsumeNext) -> None:
        await call_next(context)

    async def has_them_consumed(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        return [None for _ in await call_next(context) or ()]

    async def again(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        return await call_next(context) and await call_next(context)

    outcomes: list[Any] = [[None, Reject("no delay reported")], None]

    async def handler(messages: list[MessageExt]) -> Any:
        return outcomes.pop(0)

    with pytest.raises(HandlerError, match=r"forgets returned None.*write return await call_next\(context\)"):
        await wrap_handler("G", [forgets], handler)([])
    assert await wrap_handler("G", [forgets], handler)([]) is None, "there was nothing to lose"
    outcomes += [[Reject("no delay reported")], [Reject("no delay reported")], None]
    assert await wrap_handler("G", [has_them_consumed], handler)([]) == [None]
    assert await wrap_handler("G", [again], handler)([]) is None, "what counts is the last answer"


# --- hooks --------------------------------------------------------------------------------------------------------


class Signing:
    """A toy of ACL: a digest over all values by the order of their names, and the body. The fixed part is sorted once
    for each queue.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.prepared = 0
        self.answers: list[tuple[int, int]] = []
        self._heads: dict[SendTemplate, bytes] = {}

    def signature(self, *parts: bytes) -> str:
        return hmac.new(self.key, b"".join(parts), hashlib.sha1).hexdigest()

    def before_request(self, address: str, command: RemotingCommand) -> None:
        fields = dict(command.ext_fields)
        values = "".join(fields[name] for name in sorted(fields)).encode()
        command.ext_fields = {**fields, "Signature": self.signature(values, command.body)}

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        head = self._heads.get(request.template)
        if head is None:
            self.prepared += 1
            fields = request.template.fields
            head = self._heads[request.template] = "".join(fields[name] for name in sorted(fields)).encode()
        return encode_ext_fields({"Signature": self.signature(head, request.numbers, request.properties, request.body)})

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        self.answers.append((code, response.code))


async def test_hook_signs_commands_and_prepared_sends_without_writing_those_again() -> None:
    hook = Signing(b"key")
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T", queues=1)
        async with producer_of(cluster, client={"hooks": (hook,)}) as producer:
            for _ in range(3):
                await producer.send(Message("T", b"x", flag=7))
            await producer.send_one_way(Message("T", b"x"))
            await settle(40)
        for request in (*cluster.broker.requests, *cluster.name_server.requests):
            assert len(request.ext_fields["Signature"]) == 40
        assert hook.prepared == 1, "what is the same in all sends to a queue is looked at once"
        assert hook.answers.count((RequestCode.SEND_MESSAGE_V2, 0)) == 3
        fields = cluster.broker.sends[0].ext_fields
        assert (fields["b"], fields["h"]) == ("T", "7")


async def test_hooks_and_middleware_belong_to_the_instance_and_so_to_all_that_share_it() -> None:
    told: list[str] = []
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T")
        options = ClientOptions(client_ip="192.0.2.7", send_middleware=(Tracing("one", told),))
        instance = MQClientInstance(cluster.name_server.address, options=options, clock=clock, network=cluster.network)
        async with instance, Producer("A", instance=instance) as one, Producer("B", instance=instance) as other:
            await one.send(Message("T", b"x"))
            await other.send(Message("T", b"x"))
    assert len(told) == 4
