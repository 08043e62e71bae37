"""@rocketmq_transaction_listener and template.transaction in whole services: routed, checked at the start, shown."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.broker.handlers.transactions import TransactionHandler
from rocketbox.errors import ConfigurationError, InvalidMessageError
from rocketbox.listeners.transaction_listeners import TransactionPlan
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: shop}
rocketbox.embedded: {port: 0, name-server-port: 0, transaction-time-out: 1, transaction-check-interval: 100}
"""
SHOP = """
    from __future__ import annotations

    from typing import Annotated

    from pydantic import BaseModel
    from rocketbox import (
        Header, LocalTransactionState, MessageExt, RocketBox, RocketMQTemplate, bean, rocketmq_listener,
        rocketmq_transaction_listener,
    )

    class Order(BaseModel):
        number: int

    class Ledger:
        def __init__(self) -> None:
            self.states, self.asked, self.got = {}, [], []

    @bean
    def ledger() -> Ledger:
        return Ledger()

    app = RocketBox("shop", scan=[__name__])
"""
LISTENERS = """
    @rocketmq_transaction_listener(topic="orders", tags="paid || prepaid")
    async def was_paid(
        order: Order, message: MessageExt, ledger: Ledger, desk: Annotated[str, Header("desk")] = "none"
    ) -> LocalTransactionState:
        ledger.asked.append(("was_paid", order.number, message.tag, desk))
        return ledger.states[order.number]

    @rocketmq_transaction_listener(topic="orders", tags="sent", core_pool_size=2, maximum_pool_size=4)
    def was_sent(order: Order, ledger: Ledger) -> LocalTransactionState:
        ledger.asked.append(("was_sent", order.number, None, None))
        return ledger.states[order.number]

    @rocketmq_transaction_listener()
    def everything_else(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK

    @rocketmq_listener(topic="orders", consumer_group="desk")
    async def on_order(order: Order, ledger: Ledger) -> None:
        ledger.got.append(order.number)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_listeners_of_a_producer_are_asked_by_topic_and_tag(service: ServiceMaker) -> None:
    module = service(SHOP + LISTENERS, SETTINGS)
    commit, rollback = module.LocalTransactionState.COMMIT, module.LocalTransactionState.ROLLBACK
    async with module.app as app:
        ledger, template = app.get(module.Ledger), app.template
        async with template.transaction("orders:paid", module.Order(number=1)):
            pass
        with pytest.raises(ValueError, match="no money"):
            async with template.transaction("orders:paid", module.Order(number=2)):
                raise ValueError("no money")

        async def work(transaction: object) -> object:
            return commit

        sent = await template.send_in_transaction("orders:sent", module.Order(number=3), work)
        assert sent.state is commit
        ledger.states.update({4: commit, 5: commit, 6: rollback})
        await template.transaction("orders:prepaid", module.Order(number=4), headers={"desk": "JFK"}).begin()
        await template.transaction("orders:sent", module.Order(number=5)).begin()
        await template.transaction("orders", module.Order(number=6)).begin()
        with anyio.fail_after(PATIENCE):
            while sorted(ledger.got) != [1, 3, 4, 5]:
                await anyio.sleep(0.02)
        assert sorted(ledger.asked) == [("was_paid", 4, "prepaid", "JFK"), ("was_sent", 5, None, None)]
        container = app.listeners["shop (transactions)"]
        shown = app.health().components["listeners"].components["shop (transactions)"]
        assert shown.details["asked"] >= 2
        assert [line.partition("): ")[2] for line in container.describe()] == [
            "transactions to topic orders, tags paid || prepaid",
            "transactions to topic orders, tags sent",
            "transactions to all other topics",
        ]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_secret_stands_in_what_the_broker_is_told_of_a_failure(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers log why a transaction is not decided, and are somebody else's."""
    told: list[str] = []
    handle = TransactionHandler.handle

    def hear(self: TransactionHandler, connection: Connection, request: RemotingCommand) -> object:
        told.append(request.remark or "")
        return handle(self, connection, request)

    monkeypatch.setattr(TransactionHandler, "handle", hear)
    checker = """
    @rocketmq_transaction_listener()
    async def fails(message: MessageExt) -> LocalTransactionState:
        raise OSError("no login with hunter2-of-the-shop")
"""
    module = service(SHOP + checker, SETTINGS + "shop: {password: hunter2-of-the-shop}\n")

    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def work(transaction: object) -> object:
        raise ValueError("no login with hunter2-of-the-shop")

    async with module.app as app:
        with pytest.raises(ValueError, match="no login"):
            await app.template.send_in_transaction("orders", module.Order(number=1), work)
        with pytest.raises(UnreadableError):
            async with app.template.transaction("orders", module.Order(number=2)):
                raise UnreadableError
        with anyio.fail_after(PATIENCE):
            while not any("checker" in each for each in told):
                await anyio.sleep(0.02)
    assert told[0] == "the local work raised ValueError: no login with ******"
    assert told[1].startswith("the local work raised UnreadableError: ")
    assert next(each for each in told if "checker" in each) == "the checker raised OSError: no login with ******"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_transaction_that_no_listener_is_for_is_refused(service: ServiceMaker) -> None:
    listener = LISTENERS.split("    @rocketmq_transaction_listener()")[0]
    module = service(SHOP + listener, SETTINGS)
    async with module.app as app:
        with pytest.raises(InvalidMessageError, match="nobody could say what became of a transaction to 'orders'"):
            await app.template.transaction("orders:lost", module.Order(number=1)).begin()


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            """
    @rocketmq_transaction_listener(topic="orders", tags="paid")
    def one(order: Order) -> LocalTransactionState: ...
    @rocketmq_transaction_listener(topic="orders", tags="sent || paid")
    def two(order: Order) -> LocalTransactionState: ...
""",
            "transaction listeners one and two are both for topic orders, and both take tag paid",
        ),
        (
            """
    @rocketmq_transaction_listener()
    def one(order: Order) -> LocalTransactionState: ...
    @rocketmq_transaction_listener()
    def two(order: Order) -> LocalTransactionState: ...
""",
            "transaction listeners one and two are both for all topics",
        ),
        (
            """
    @rocketmq_transaction_listener(topic="orders")
    def one(order: Order) -> bool: ...
""",
            "transaction listener one returns bool, and has to say what became of a transaction",
        ),
        (
            """
    @rocketmq_transaction_listener(topic="orders")
    def one(orders: list[Order]) -> LocalTransactionState: ...
""",
            "transaction listener one takes a batch, and is asked about one transaction at a time",
        ),
        (
            """
    @rocketmq_transaction_listener(tags="paid")
    def one(order: Order) -> LocalTransactionState: ...
""",
            "transaction listener one has tags, and names no topic",
        ),
        (
            """
    @rocketmq_transaction_listener(cluster="audit")
    def one(order: Order) -> LocalTransactionState: ...
""",
            "transaction listener one names cluster 'audit', and there is none of that name",
        ),
        (
            """
    @rocketmq_transaction_listener(core_pool_size=0)
    def one(order: Order) -> LocalTransactionState: ...
""",
            "core_pool_size of transaction listener one is 0, and must be 1 or more",
        ),
    ],
)
def test_what_is_wrong_with_them_is_found_at_the_start(service: ServiceMaker, source: str, what: str) -> None:
    look = service(SHOP + source, SETTINGS).app.look()
    assert [finding.what for finding in look.findings] == [what]


def test_one_needs_a_producer(service: ServiceMaker) -> None:
    settings = SETTINGS.replace("  producer: {group: shop}\n", "")
    look = service(SHOP + LISTENERS.split("    @rocketmq_listener")[0], settings).app.look()
    assert "need a bean of type Producer" in look.findings[0].what


def test_one_that_is_switched_off_is_told(service: ServiceMaker) -> None:
    source = """
    @rocketmq_transaction_listener(topic="orders", enabled=False)
    def one(order: Order) -> LocalTransactionState: ...
"""
    look = service(SHOP + source, SETTINGS).app.look()
    assert [finding.what for finding in look.off] == ["transaction listener one is off: enabled=False"]


def test_a_method_of_a_bean_that_a_condition_leaves_out_is_off(service: ServiceMaker) -> None:
    source = """
    from rocketbox import on_property

    @bean(on_property("desk.pays", to="true"))
    class Desk:
        @rocketmq_transaction_listener(topic="orders")
        def was_paid(self, order: Order) -> LocalTransactionState: ...
"""
    look = service(SHOP + source, SETTINGS).app.look()
    assert look.findings == []
    assert [finding.what for finding in look.off] == [
        "transaction listener Desk.was_paid is off: it needs a bean of type Desk, and there is none: "
        "Desk was not built because desk.pays is not set"
    ]


def test_a_consumer_group_may_have_the_name_of_the_producer_group(service: ServiceMaker) -> None:
    source = SHOP + LISTENERS.replace('consumer_group="desk"', 'consumer_group="shop"')
    assert service(source, SETTINGS).app.look().findings == []


# --- what the settings say of them -----------------------------------------------------------------------------------

POOLS = """
    @rocketmq_transaction_listener(topic="paid-orders", tags="paid", core_pool_size=2, keep_alive_time="5s")
    def one(order: Order) -> LocalTransactionState: ...
    @rocketmq_transaction_listener(topic="paid-orders", tags="sent")
    def two(order: Order) -> LocalTransactionState: ...
    @rocketmq_transaction_listener()
    def three(order: Order) -> LocalTransactionState: ...
    @rocketmq_transaction_listener(cluster="audit")
    def four(order: Order) -> LocalTransactionState: ...
"""
POOL_SETTINGS = SETTINGS.replace(
    "{group: shop}",
    """
    group: shop
    transaction-listeners:
      paid-orders: {core-pool-size: 4, maximum-pool-size: 8}
      "*": {blocking-queue-size: 10}
  clusters:
    audit: {name-server: "audit:9876", producer: {group: shop, transaction-listeners: {"*": {keep-alive-time: 2m}}}}
""",
)


def pools(look: Assembly) -> dict[str, tuple[int, int, float, int]]:
    """By the name of each listener: core, most, seconds to live, how many wait."""
    return {
        function.signature.name: (
            function.options.core_pool_size, function.options.maximum_pool_size,
            function.options.keep_alive_time, function.options.blocking_queue_size,
        )
        for plan in look.plans
        if isinstance(plan, TransactionPlan)
        for function in plan.functions
    }  # fmt: skip


def test_their_pools_are_options_in_settings_by_topic_and_win_over_the_decorator(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = service(SHOP + POOLS, POOL_SETTINGS)
    look = module.app.look()
    assert (look.findings, look.warnings) == ([], [])
    assert pools(look) == {
        "one": (4, 8, 5.0, 2000),
        "two": (4, 8, 60.0, 2000),
        "three": (1, 1, 60.0, 10),
        "four": (1, 1, 120.0, 2000),
    }
    monkeypatch.setenv("ROCKETMQ_PRODUCER_TRANSACTION_LISTENERS_PAID_ORDERS_CORE_POOL_SIZE", "6")
    assert pools(module.app.look())["one"][0] == 6


def test_a_setting_switches_them_off_and_what_has_no_effect_is_told(service: ServiceMaker) -> None:
    settings = POOL_SETTINGS.replace("core-pool-size: 4", "enabled: false").replace('"*": {bl', "orders: {bl")
    look = service(SHOP + POOLS, settings).app.look()
    key = "rocketmq.producer.transaction-listeners"
    assert [finding.what for finding in look.off] == [
        f"transaction listener {name} is off: {key}.paid-orders.enabled is false" for name in ("one", "two")
    ]
    (warning,) = look.warnings
    assert warning.what == f"{key}.orders has no effect: no transaction listener of the cluster names that topic"
    assert warning.where == "rocketbox.yaml:7:37"
    assert warning.fix == "leave it out; topics that they name: none, for which '*' stands, paid-orders"


def test_wrong_pools_in_settings_are_refused_with_their_place(service: ServiceMaker) -> None:
    settings = POOL_SETTINGS.replace("core-pool-size: 4, maximum-pool-size: 8", "core-pool-size: 0, keep-alive: 5s")
    with pytest.raises(ConfigurationError) as caught:
        service(SHOP + POOLS, settings).app.look()
    key = "rocketmq.producer.transaction-listeners.paid-orders"
    assert [(finding.what, finding.where) for finding in caught.value.findings] == [
        (f"unknown key {key}.keep-alive", "rocketbox.yaml:6:40"),
        (f"{key}.core-pool-size is '0', and must be 1 or more", "rocketbox.yaml:6:37"),
    ]
