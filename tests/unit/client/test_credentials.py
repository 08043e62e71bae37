"""A client instance with credentials: all of its requests are signed, and a refusal of its user is final."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from rocketbox.client import ClientOptions, Credentials, MQClientInstance, Producer, SendRequest
from rocketbox.errors import AccessDeniedError, BrokerError
from rocketbox.message import Message
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_ext_fields
from rocketbox.remoting import acl
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

KEYS = Credentials(access_key="publisher", secret_key="hunter2")


def instance_of(cluster: ScriptedCluster, **options: Any) -> MQClientInstance:
    return MQClientInstance(
        cluster.name_server.address, options=ClientOptions(client_ip="192.0.2.7", **options),
        clock=cluster.clock, network=cluster.network,
    )  # fmt: skip


async def test_all_requests_of_an_instance_are_signed_and_sends_stay_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    read_back = 0

    def counting(frame: bytes) -> RemotingCommand:
        nonlocal read_back
        read_back += 1
        return decode_command(frame)

    monkeypatch.setattr(acl, "decode_command", counting)
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T", queues=1)
        async with instance_of(cluster, credentials=KEYS) as instance, Producer("PG", instance=instance) as producer:
            for _ in range(5):
                await producer.send(Message("T", b"x"))
            await producer.send_many([Message("T", b"x")] * 5)
            await producer.send_one_way(Message("T", b"x"))
            await producer.send_batch([Message("T", b"x")] * 2)
            await settle(40)
        seen = [*cluster.broker.requests, *cluster.name_server.requests]
        codes = {request.code for request in seen}
        assert {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.HEART_BEAT,
                RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.UNREGISTER_CLIENT} <= codes  # fmt: skip
        for request in seen:
            assert request.ext_fields["AccessKey"] == "publisher"
            assert len(request.ext_fields["Signature"]) == 28
    assert read_back == 2, "once for single messages and once for batches, of one queue"


async def test_what_a_users_hook_adds_is_signed_too() -> None:
    class Zone:
        def before_request(self, address: str, command: RemotingCommand) -> None:
            command.ext_fields = {**command.ext_fields, "zone": "north"}

        def before_prepared(self, address: str, request: SendRequest) -> bytes:
            return encode_ext_fields({"zone": "north"})

        def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
            pass

    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T", queues=1)
        options: dict[str, Any] = {"credentials": KEYS, "hooks": (Zone(),)}
        async with instance_of(cluster, **options) as instance, Producer("PG", instance=instance) as producer:
            await producer.send(Message("T", b"x"))
        (request,) = cluster.broker.sends
        fields = dict(request.ext_fields)
        signature = fields.pop("Signature")
        again = RemotingCommand.request(request.code, fields, request.body)
        acl.RequestSigner(KEYS).before_request("", again)
        assert (fields["zone"], again.ext_fields["Signature"]) == ("north", signature)


@pytest.mark.parametrize(
    ("code", "remark", "denied"),
    [
        (16, "check signature failed.", True),
        (16, "User:publisher has no permission to access Topic:T from 192.0.2.7", True),
        (16, None, True),
        (1, "org.apache.rocketmq.acl.common.AclException: No acl config for nobody, ...", True),
        (16, "the broker[192.0.2.1] sending message is forbidden", False),
        (16, "Sending message to topic[T] is forbidden.", False),
        (1, "store putMessage return null", False),
    ],
)
async def test_a_refusal_of_the_user_says_so_and_is_no_reason_to_try_again(
    code: int, remark: str | None, denied: bool
) -> None:
    clock = VirtualClock()
    errors: list[BrokerError] = []
    async with ScriptedCluster(clock) as cluster:
        cluster.add_topic("T", queues=1)
        cluster.broker.on_send = lambda request: RemotingCommand.response(code, remark)
        async with instance_of(cluster, credentials=KEYS) as instance, Producer("PG", instance=instance) as producer:

            async def send() -> None:
                with pytest.raises(BrokerError) as caught:
                    await producer.send(Message("T", b"x"))
                errors.append(caught.value)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await clock.advance(1.0)
        assert len(cluster.broker.sends) == (1 if denied else 3)
    (error,) = errors
    assert isinstance(error, AccessDeniedError) is denied
    if denied:
        assert "denies access" in str(error)
        assert "rocketmq.access-key and rocketmq.secret-key (of a further cluster rocketmq.clusters." in str(error)
        assert "rocketmq.access-key" in str(error)
        assert "hunter2" not in str(error)


async def test_a_name_server_that_denies_access_is_no_missing_route() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _, request: RemotingCommand.response(
            16, "User:publisher is not found."
        )
        async with instance_of(cluster, credentials=KEYS) as instance, Producer("PG", instance=instance) as producer:
            with pytest.raises(AccessDeniedError, match=r"User:publ\.\.\. is not found"):
                await producer.send(Message("T", b"x"))
