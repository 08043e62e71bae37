"""``template.blocking`` in whole services: from handlers, from threads of others, in transactions, at the stop."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

import anyio.to_thread
import pytest

from rocketbox import (
    BlockingRocketMQTemplate,
    ClientStateError,
    ConfigurationError,
    ForkedError,
    LocalTransactionState,
    NotStartedError,
    RocketMQTemplate,
)
from rocketbox.testing import Harness, StuckError
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: shop}
rocketbox.embedded: {port: 0, name-server-port: 0}
"""
SHOP = """
    from __future__ import annotations

    import threading
    from datetime import timedelta

    import anyio.from_thread
    from pydantic import BaseModel
    from rocketbox import (
        BlockingRocketMQTemplate, LocalTransactionState, RocketBox, RocketMQTemplate, bean, rocketmq_listener,
        rocketmq_transaction_listener,
    )

    class Order(BaseModel):
        number: int

    class Seen:
        def __init__(self) -> None:
            self.billed, self.threads = [], []
            self.came = threading.Semaphore(0)

    @bean
    def seen() -> Seen:
        return Seen()

    @rocketmq_listener(topic="orders", consumer_group="desk")
    def on_order(order: Order, template: BlockingRocketMQTemplate, seen: Seen) -> None:
        seen.threads.append(threading.current_thread().name)
        result = template.send("bills", order, keys=f"bill-{order.number}")
        assert result.msg_id

    @rocketmq_listener(topic="bills", consumer_group="bills")
    async def on_bill(bill: Order, seen: Seen) -> None:
        seen.billed.append(bill.number)
        seen.came.release()

    @rocketmq_listener(topic="quotes", consumer_group="quotes")
    async def quote(order: Order) -> Order:
        return Order(number=order.number * 2)

    @rocketmq_transaction_listener()
    def unknown(order: Order) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    app = RocketBox("shop", scan=[__name__])
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(SHOP, SETTINGS)


@pytest.fixture
def running(shop: ModuleType) -> Iterator[ModuleType]:
    with shop.app.background():
        yield shop


# --- one set of verbs ------------------------------------------------------------------------------------------------


def verbs(template: type) -> dict[str, Any]:
    functions = inspect.getmembers(template, inspect.isfunction)
    return {name: function for name, function in functions if not name.startswith("_")}


def test_it_has_the_verbs_of_the_template_with_the_same_signatures() -> None:
    waiting, blocking = verbs(RocketMQTemplate), verbs(BlockingRocketMQTemplate)
    assert set(blocking) == set(waiting)
    for name, function in blocking.items():
        ours, theirs = inspect.signature(function), inspect.signature(waiting[name])
        assert ours == theirs, name
        assert not inspect.iscoroutinefunction(function), name
        assert function.__qualname__ == f"BlockingRocketMQTemplate.{name}"
        assert inspect.getdoc(function), name


# --- threads of others -----------------------------------------------------------------------------------------------


def test_threads_of_a_program_without_a_loop_send(running: ModuleType) -> None:
    blocking, seen = running.app.template.blocking, running.app.get(running.Seen)
    assert blocking.send("bills", running.Order(number=0), keys="0").queue_offset == 0
    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(lambda number: blocking.send("bills", running.Order(number=number)), range(1, 41)))
    assert len({result.msg_id for result in sent}) == 40
    assert len(blocking.send_many("bills", [running.Order(number=number) for number in (41, 42)])) == 2
    assert len(blocking.send_batch("bills", [running.Order(number=number) for number in (43, 44)])) == 2
    blocking.send_one_way("bills", running.Order(number=45))
    for _ in range(46):
        assert seen.came.acquire(timeout=PATIENCE)
    assert sorted(seen.billed) == list(range(46))
    assert blocking.send_and_receive("quotes", running.Order(number=4), running.Order).number == 8


def test_errors_are_those_of_the_template(running: ModuleType) -> None:
    blocking = running.app.template.blocking
    with pytest.raises(ConfigurationError, match="elsewhere"):
        blocking.send("bills", running.Order(number=1), cluster="elsewhere")
    with pytest.raises(TypeError, match="delai"):
        blocking.send("bills", running.Order(number=1), delai="3s")


def test_a_delayed_message_is_recalled(running: ModuleType) -> None:
    blocking = running.app.template.blocking
    result = blocking.send("bills", running.Order(number=1), delay="90s")
    assert blocking.recall(result.recall_handle) == result.msg_id


@pytest.mark.anyio
async def test_where_a_loop_runs_it_is_refused_with_the_way_out(shop: ModuleType) -> None:
    async with shop.app as app:
        blocking = app.template.blocking
        with pytest.raises(ClientStateError, match=r"write await template\.send\(\)"):
            blocking.send("bills", shop.Order(number=1))
        with pytest.raises(ClientStateError, match=r"write await template\.transaction\(\)"):
            blocking.transaction("bills", shop.Order(number=1))


def test_after_the_stop_and_in_a_fork_it_is_refused(shop: ModuleType) -> None:
    with shop.app.background():
        blocking = shop.app.template.blocking
        child = os.fork()
        if not child:
            try:
                blocking.send("bills", shop.Order(number=1))
            except ForkedError:
                os._exit(7)
            except BaseException:
                os._exit(8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with pytest.raises(NotStartedError):
        blocking.send("bills", shop.Order(number=1))


def test_a_stop_while_threads_send_leaves_none_waiting_and_loses_nothing_that_was_told(shop: ModuleType) -> None:
    for _ in range(3):
        ended: list[Future[int]] = []

        def send_until_refused(ended: Future[int], blocking: BlockingRocketMQTemplate, go: threading.Event) -> None:
            sent = 0
            try:
                while True:
                    blocking.send("bills", shop.Order(number=sent))
                    sent += 1
                    go.set()
            except ClientStateError:
                ended.set_result(sent)
            except BaseException as error:
                ended.set_exception(error)

        with shop.app.background():
            for _ in range(6):
                ended.append(Future())
                go = threading.Event()
                arguments = (ended[-1], shop.app.template.blocking, go)
                threading.Thread(target=send_until_refused, args=arguments, daemon=True).start()
                assert go.wait(PATIENCE)
        assert all(future.result(PATIENCE) > 0 for future in ended)


# --- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_is_committed_or_rolled_back_by_its_block(running: ModuleType) -> None:
    blocking, seen = running.app.template.blocking, running.app.get(running.Seen)
    with blocking.transaction("bills", running.Order(number=1), keys="1") as transaction:
        assert transaction.transaction_id
        assert not seen.billed
    with pytest.raises(ValueError, match="no money"), blocking.transaction("bills", running.Order(number=2)):
        raise ValueError("no money")
    with blocking.transaction("bills", running.Order(number=3)) as transaction:
        transaction.rollback()
    assert transaction.state is LocalTransactionState.ROLLBACK
    with pytest.raises(KeyboardInterrupt), blocking.transaction("bills", running.Order(number=4)) as transaction:
        raise KeyboardInterrupt
    blocking.send("bills", running.Order(number=5))
    for _ in range(2):
        assert seen.came.acquire(timeout=PATIENCE)
    assert sorted(seen.billed) == [1, 5]
    assert transaction.state is LocalTransactionState.UNKNOWN


def test_the_work_of_a_transaction_is_done_in_the_thread_that_sends(running: ModuleType) -> None:
    blocking, threads = running.app.template.blocking, []

    def work(transaction: object) -> LocalTransactionState:
        threads.append(threading.get_ident())
        return LocalTransactionState.COMMIT

    sent = blocking.send_in_transaction("bills", running.Order(number=1), work)
    assert sent.state is LocalTransactionState.COMMIT
    assert threads == [threading.get_ident()]

    async def awaited(transaction: object) -> LocalTransactionState:
        threads.append(threading.get_ident())
        return LocalTransactionState.ROLLBACK

    sent = blocking.send_in_transaction("bills", payload=running.Order(number=2), work=awaited, keys="2")
    assert sent.state is LocalTransactionState.ROLLBACK
    assert threads[1] != threads[0]

    def fail(transaction: object) -> LocalTransactionState:
        raise ValueError("no money")

    with pytest.raises(ValueError, match="no money"):
        blocking.send_in_transaction("bills", running.Order(number=3), fail)


def test_a_transaction_whose_client_was_closed_meanwhile_ends_without_an_error(
    shop: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with shop.app.background():
        transaction = shop.app.template.blocking.transaction("bills", shop.Order(number=1))
        transaction.__enter__()
    transaction.__exit__(None, None, None)
    assert "was not told how transaction" in caplog.text


# --- handlers --------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_def_handler_sends_by_it_in_the_harness(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.template.send("orders", shop.Order(number=7))
        await harness.drain()
        assert harness.app.get(shop.Seen).billed == [7]
        assert harness.sent("bills").one(shop.Order).number == 7


@pytest.mark.anyio
async def test_hooks_and_threads_of_handlers_send_to_further_clusters_as_well(service: ServiceMaker) -> None:
    module = service(
        """
    import threading
    from typing import Annotated

    from rocketbox import BlockingRocketMQTemplate, Qualifier, RocketBox, rocketmq_listener

    app = RocketBox("shop", scan=[__name__])
    seen = []

    @app.on_startup
    def first(template: BlockingRocketMQTemplate) -> None:
        seen.append(template.send("orders", "x" * 100_000).status.name)  # compressed, in a thread

    @rocketmq_listener(topic="orders", consumer_group="desk")
    def got(
        text: str,
        template: BlockingRocketMQTemplate,
        audit: Annotated[BlockingRocketMQTemplate, Qualifier("audit")],
    ) -> None:
        template.send("records", text[:3], cluster="audit")
        audit.send("records", text[:4])
        threads = [threading.Thread(target=lambda: seen.append(template.send("bills", "a").status.name)) for _ in "123"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
""",
        """
rocketmq:
  name-server: embedded
  producer: {group: shop}
  clusters: {audit: {name-server: embedded, producer: {group: shop}}}
rocketbox.embedded: {port: 0, name-server-port: 0}
""",
    )
    async with Harness(module.app, patience=3.0) as harness:
        await harness.drain()
        assert module.seen == ["SEND_OK"] * 4
        assert sorted(sent.body for sent in harness.sent("records", cluster="audit")) == [b"xxx", b"xxxx"]


@pytest.mark.anyio
async def test_time_passes_for_a_def_handler_that_waits_for_what_it_has_sent(service: ServiceMaker) -> None:
    module = service(
        SHOP
        + """
    @rocketmq_listener(topic="calls", consumer_group="calls")
    def call(order: Order, template: BlockingRocketMQTemplate, seen: Seen) -> None:
        try:
            template.send_and_receive("nobody", order, Order, timeout="30s")
        except Exception as error:
            seen.billed.append(type(error).__name__)
""",
        SETTINGS,
    )
    async with Harness(module.app, patience=1.0) as harness:
        await harness.template.send("calls", module.Order(number=7))
        await harness.drain()
        assert harness.app.get(module.Seen).billed == ["ReplyTimeoutError"]


IN_A_THREAD = {
    "anyio.to_thread": "await anyio.to_thread.run_sync(ask)",
    "asyncio.to_thread": "await asyncio.to_thread(ask)",
    "an executor": "await asyncio.get_running_loop().run_in_executor(None, ask)",
    "a pool of its own": "await asyncio.wrap_future(pool.submit(ask))",
    "a task": "await asyncio.create_task(asyncio.to_thread(ask))",
    "a thread of its own": "threading.Thread(target=ask).start()",
}


@pytest.mark.parametrize("way", IN_A_THREAD)
@pytest.mark.anyio
async def test_time_passes_for_a_thread_that_a_handler_lets_wait(service: ServiceMaker, way: str) -> None:
    module = service(
        SHOP
        + f"""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)

    @rocketmq_listener(topic="calls", consumer_group="calls")
    async def call(order: Order, seen: Seen) -> None:
        def ask() -> None:
            try:
                app.template.blocking.send_and_receive("nobody", order, Order, timeout="30s")
            except Exception as error:
                seen.billed.append(type(error).__name__)

        {IN_A_THREAD[way]}
""",
        SETTINGS,
    )
    async with Harness(module.app, patience=1.0) as harness:
        await harness.template.send("calls", module.Order(number=7))
        await harness.drain()
        assert harness.app.get(module.Seen).billed == ["ReplyTimeoutError"]
    module.pool.shutdown()


@pytest.mark.anyio
async def test_no_time_passes_for_who_joins_a_thread_that_waits_and_the_error_names_the_line(
    service: ServiceMaker,
) -> None:
    module = service(
        SHOP
        + """
    @rocketmq_listener(topic="calls", consumer_group="calls")
    def call(order: Order, template: BlockingRocketMQTemplate) -> None:
        thread = threading.Thread(target=ask, args=(template, order))
        thread.start()
        thread.join()

    def ask(template: BlockingRocketMQTemplate, order: Order) -> None:
        try:
            template.send_and_receive("nobody", order, Order, timeout="30s")
        except Exception:
            pass
""",
        SETTINGS,
    )
    async with Harness(module.app, patience=0.2) as harness:
        await harness.template.send("calls", module.Order(number=7))
        with pytest.raises(StuckError, match=r"a thread of calls waits at .*:50 in call"):
            await harness.drain()


@pytest.mark.anyio
async def test_a_template_of_a_tests_own_has_none_and_says_so(shop: ModuleType) -> None:
    class Fake:
        async def send(self, destination: str, payload: object) -> None: ...

    async with shop.app.started(beans={RocketMQTemplate: Fake()}) as app:
        blocking = app.get(BlockingRocketMQTemplate)
        with pytest.raises(ClientStateError, match=r"the template is a .*Fake, which has no Producer"):
            await anyio.to_thread.run_sync(blocking.send, "bills", "a")


@pytest.mark.parametrize("handler", ["async def", "def"])
def test_the_wrong_template_for_a_handler_is_a_finding(service: ServiceMaker, handler: str) -> None:
    wrong = "BlockingRocketMQTemplate" if handler == "async def" else "RocketMQTemplate"
    module = service(
        SHOP
        + f"""
    @rocketmq_listener(topic="orders", consumer_group="wrong")
    {handler} wrong(order: Order, template: {wrong}) -> None: ...
""",
        SETTINGS,
    )
    with pytest.raises(ConfigurationError, match=rf"takes {wrong} in parameter 'template', which"):
        module.app.check()


@pytest.mark.anyio
async def test_a_def_handler_may_call_into_the_loop_by_anyio(service: ServiceMaker) -> None:
    module = service(
        SHOP
        + """
    @rocketmq_listener(topic="calls", consumer_group="calls")
    def call(order: Order, seen: Seen) -> None:
        anyio.from_thread.run(app.template.send, "bills", order)
        anyio.from_thread.run_sync(seen.threads.append, "in the loop")
""",
        SETTINGS,
    )
    async with Harness(module.app) as harness:
        await harness.template.send("calls", module.Order(number=7))
        await harness.drain()
        assert harness.app.get(module.Seen).threads == ["in the loop"]
        assert harness.app.get(module.Seen).billed == [7]


def test_endpoints_that_block_send_in_the_harness_of_a_plain_test(shop: ModuleType) -> None:
    with Harness(shop.app) as harness:
        answer = shop.app.template.blocking.send_and_receive("quotes", shop.Order(number=2), shop.Order)
        assert answer.number == 4
        shop.app.template.blocking.send("orders", shop.Order(number=3))
        harness.blocking.drain()
        assert harness.app.get(shop.Seen).billed == [3]
