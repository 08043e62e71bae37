"""Producer: what a program sends with. Its life here, its sending in ``sending``.

Source: Apache RocketMQ 5.x ``DefaultMQProducer``, ``DefaultMQProducerImpl.start``, ``shutdown``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rocketbox.client.checks import check_group
from rocketbox.client.instance import MQClientInstance, own_or_shared
from rocketbox.client.options import ClientOptions, ProducerOptions
from rocketbox.client.sending import Sender
from rocketbox.client.unbuilt import refuse_unbuilt
from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError
from rocketbox.remoting.network import Network

__all__ = ["Producer"]


class Producer(Sender):
    """Sends messages as a member of a producer group.

    ``async with Producer("flight-desk", name_server="127.0.0.1:9876") as producer: await producer.send(message)``.
    With ``name_server`` it has a client instance of its own, with ``instance`` it shares one that is started already;
    ``client_options``, ``clock`` and ``network`` are for its own one. Any number of tasks may send at once.

    Raises InvalidGroupError for a group that RocketMQ does not take or that another producer of the instance has,
    ConfigurationError for options that ask for what is not built yet (``unbuilt``).
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str] | None = None,
        instance: MQClientInstance | None = None,
        options: ProducerOptions | None = None,
        client_options: ClientOptions | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
    ) -> None:
        check_group(group, "producer")
        options = options or ProducerOptions()
        refuse_unbuilt(options)
        instance, self._owns_instance = own_or_shared(
            f"producer {group}", name_server, instance, client_options=client_options, clock=clock, network=network
        )
        super().__init__(group, instance, options)
        self._open = False
        self._started = False

    @property
    def instance(self) -> MQClientInstance:
        """The client instance it sends over."""
        return self._instance

    async def __aenter__(self) -> Self:
        if self._started:
            raise ClientStateError(f"producer {self.group} was started before; make a new Producer")
        if self._owns_instance:
            self._started = True
            await self._instance.__aenter__()
        self._instance.check_running(f"the client instance of producer {self.group}")
        self._turn = self._clock.random.getrandbits(31)
        self._instance.register_producer(self.group, self)
        self._started = self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._open = False
        try:
            await self._instance.unregister_producer(self.group)
        finally:  # a task's own cancel() comes through the shield of the goodbye
            handled = await self._instance.__aexit__(kind, error, trace) if self._owns_instance else None
        return handled

    def __repr__(self) -> str:
        state = "running" if self._open else "closed" if self._started else "not started"
        return f"Producer({self.group!r}, {state})"
