"""Transactions at the broker: half messages that nobody sees, their ends, and the questions about those without one."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest

from rocketbox.broker.open_halves import Half
from rocketbox.clock import RealClock
from rocketbox.errors import InvalidMessageError, StoreFullError
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import (
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_GROUP,
    UNDELIVERED_TOPIC,
    MessageSysFlag,
    RequestCode,
)
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.remoting.connection import Connection
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import BrokerWire, broker_in_memory
from tests.support.broker.open_transactions import OpenTransactions, offsets_text, open_transactions
from tests.support.broker.transaction_requests import COMMIT, ROLL_BACK, UNKNOWN, bodies, end, half
from tests.support.clocks import VirtualClock, settle
from tests.support.store.store_tools import WAITING, FaultyStorage
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SMALL = replace(WAITING, mapped_file_size_commit_log=1 << 16)
QUEUES = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)


async def test_a_half_message_is_read_when_it_is_committed_and_not_before() -> None:
    async with broker_in_memory() as wire:
        fields = await half(wire, "t1", "TAGS\x01paid\x02")
        assert await bodies(wire) == []
        (parked,) = await wire.messages(TRANS_HALF_TOPIC)
        assert parked.properties["REAL_TOPIC"] == "orders"
        assert parked.properties["REAL_QID"] == "0"
        assert parked.properties["__transactionId__"] == "t1"
        assert parked.sys_flag & MessageSysFlag.TRANSACTION_ROLLBACK == 0
        assert (await end(wire, fields, COMMIT)).code == 0
        (message,) = await wire.messages("orders")
        assert (message.body, message.tag, message.msg_id) == (b"t1", "paid", "t1")
        assert message.sys_flag & MessageSysFlag.TRANSACTION_ROLLBACK == MessageSysFlag.TRANSACTION_COMMIT
        assert message.prepared_transaction_offset == int(fields["commitLogOffset"])
        (mark,) = await wire.messages(TRANS_OP_HALF_TOPIC)
        assert (mark.body, mark.tag) == (b"0", "d")
        assert len(wire.running.halves) == 0


async def test_a_half_message_that_is_rolled_back_is_read_by_nobody() -> None:
    async with broker_in_memory() as wire:
        assert (await end(wire, await half(wire, "t1"), ROLL_BACK)).code == 0
        assert await bodies(wire) == []
        assert [mark.body for mark in await wire.messages(TRANS_OP_HALF_TOPIC)] == [b"0"]


async def test_a_transaction_ends_once() -> None:
    """5.5.0 stores the message again with each commit."""
    async with broker_in_memory() as wire:
        fields = await half(wire, "t1")
        assert (await end(wire, fields, COMMIT)).code == 0
        for how in (COMMIT, ROLL_BACK):
            again = await end(wire, fields, how)
            assert again.code == 1
            assert "has ended before" in (again.remark or "")
        assert await bodies(wire) == [b"t1"]


async def test_an_end_that_is_not_known_leaves_it_open() -> None:
    async with broker_in_memory() as wire:
        fields = await half(wire, "t1")
        assert (await end(wire, fields, UNKNOWN)).code == 0
        assert (await end(wire, fields, 5)).code == 1
        assert len(wire.running.halves) == 1
        assert (await end(wire, fields, COMMIT)).code == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"producerGroup": "others"}, "group wrong"),
        ({"tranStateTableOffset": 1}, "table offset wrong"),
        ({"commitLogOffset": 1}, "prepared transaction message failed"),
        ({"commitLogOffset": 1 << 40}, "prepared transaction message failed"),
        ({"commitLogOffset": -1}, "prepared transaction message failed"),
    ],
)
async def test_an_end_that_names_another_half_message_is_refused(wrong: dict[str, object], words: str) -> None:
    async with broker_in_memory() as wire:
        fields = await half(wire, "t1")
        refused = await end(wire, fields, COMMIT, **wrong)
        assert refused.code == 1
        assert words in (refused.remark or "")
        assert await bodies(wire) == []


async def test_an_end_that_names_an_ordinary_message_is_refused() -> None:
    async with broker_in_memory() as wire:
        sent = await wire.send("orders", b"plain", properties="PGROUP\x01payers\x02")
        fields = {
            "producerGroup": "payers", "tranStateTableOffset": 0,
            "commitLogOffset": int(sent.ext_fields["msgId"][-16:], 16),
        }  # fmt: skip
        refused = await wire.broker(RequestCode.END_TRANSACTION, {**fields, "commitOrRollback": COMMIT})
        assert refused.code == 1
        assert await bodies(wire) == [b"plain"]


async def test_an_end_after_the_immunity_of_a_message_is_left_to_the_check() -> None:
    async with broker_in_memory() as wire:
        fields = await half(wire, "t1", "CHECK_IMMUNITY_TIME_IN_SECONDS\x010\x02")
        await anyio.sleep(0.002)
        assert (await end(wire, fields, COMMIT)).code == 604
        assert (await end(wire, fields, COMMIT, fromTransactionCheck="true")).code == 0


@pytest.mark.parametrize("delay", ["DELAY\x013\x02", "TIMER_DELAY_SEC\x0110\x02"])
async def test_a_half_message_with_a_delay_is_refused(delay: str) -> None:
    async with broker_in_memory() as wire:
        text = f"UNIQ_KEY\x01t1\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02{delay}"
        refused = await wire.send("orders", properties=text)
        assert refused.code == 13
        assert "half message" in (refused.remark or "")


async def test_half_messages_may_be_switched_off() -> None:
    async with broker_in_memory(settings={"reject-transaction-message": True}) as wire:
        refused = await wire.send("orders", properties="TRAN_MSG\x01true\x02PGROUP\x01payers\x02")
        assert refused.code == 16
        assert "sending transaction message is forbidden" in (refused.remark or "")


async def test_open_transactions_are_limited() -> None:
    async with broker_in_memory(settings={"max-half-messages": 2, "max-half-messages-per-address": 4}) as wire:
        first = await half(wire, "t1")
        await half(wire, "t2")
        refused = await wire.send("orders", properties="TRAN_MSG\x01true\x02PGROUP\x01payers\x02")
        assert refused.code == 2
        assert "max-half-messages" in (refused.remark or "")
        assert wire.running.halves.refused == 1
        assert (await end(wire, first, ROLL_BACK)).code == 0
        await half(wire, "t3")


class Payers:
    """A producer group's member at the other end of the wire."""

    def __init__(self, wire: BrokerWire) -> None:
        self.wire = wire
        self.asked: list[RemotingCommand] = []
        self.heard = anyio.Event()
        wire.client.register_handler(RequestCode.CHECK_TRANSACTION_STATE, self._hear)

    def _hear(self, connection: Connection, request: RemotingCommand) -> None:
        self.asked.append(request)
        self.heard.set()

    async def join(self) -> None:
        beat = {"clientID": "c", "producerDataSet": [{"groupName": "payers"}], "consumerDataSet": []}
        assert (await self.wire.broker(RequestCode.HEART_BEAT, None, json.dumps(beat).encode())).code == 0

    async def next(self) -> RemotingCommand:
        with anyio.fail_after(PATIENCE):
            await self.heard.wait()
        self.heard = anyio.Event()
        return self.asked[-1]


async def test_a_producer_of_the_group_is_asked_and_its_answer_ends_the_transaction() -> None:
    async with broker_in_memory(settings={"transaction-time-out": 0}) as wire:
        await wire.send("orders", b"before")  # so that the half does not lie at 0
        first = await half(wire, "t1", "TAGS\x01paid\x02")
        payers = Payers(wire)
        await payers.join()
        await wire.running.transaction_checks.round()
        asked = await payers.next()
        fields = asked.ext_fields
        assert asked.is_oneway
        assert fields["topic"] == TRANS_HALF_TOPIC
        assert fields["msgId"] == fields["transactionId"] == "t1"
        assert fields["tranStateTableOffset"] == "1"
        assert fields["bname"] == "broker-a"
        message = decode_message(asked.body)[0]
        assert (message.topic, message.body, message.tag) == ("orders", b"t1", "paid")
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert message.commit_log_offset == int(fields["commitLogOffset"]) == int(fields["offsetMsgId"][-16:], 16)
        copies = await wire.messages(TRANS_HALF_TOPIC)
        assert [copy.properties.get("TRANSACTION_CHECK_TIMES") for copy in copies] == [None, "1"]
        answer = {name: fields[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")}
        done = await end(wire, {"producerGroup": "payers", **answer}, COMMIT, fromTransactionCheck="true")
        assert done.code == 0, done.remark
        assert await bodies(wire) == [b"before", b"t1"]
        assert (await end(wire, first, ROLL_BACK)).code == 1
        await wire.running.transaction_checks.round()
        assert len(payers.asked) == 1


async def test_an_end_that_comes_after_a_check_was_sent_counts() -> None:
    """It names the half message as it was sent, and not the copy that was checked."""
    async with broker_in_memory(settings={"transaction-time-out": 0}) as wire:
        first = await half(wire, "t1")
        await wire.running.transaction_checks.round()
        assert (await end(wire, first, COMMIT)).code == 0
        assert await bodies(wire) == [b"t1"]
        assert len(wire.running.halves) == 0


@pytest.mark.parametrize("how", [COMMIT, ROLL_BACK], ids=["commit", "roll back"])
@pytest.mark.parametrize(
    ("properties", "waits"), [("", [60]), ("", [60, 60]), ("CHECK_IMMUNITY_TIME_IN_SECONDS\x017200\x02", [700, 700])],
    ids=["checked", "checked twice", "moved"],
)  # fmt: skip
async def test_an_end_counts_whose_half_was_checked_or_moved_before_the_broker_was_started_anew(
    properties: str, waits: list[int], how: int
) -> None:
    """Its sender knows the first place alone, as at Apache's brokers, which take it."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        fields, other = await half(wire, "t1", properties), await half(wire, "t2", properties)
        for seconds in waits:
            clock.now += seconds
            await wire.running.transaction_checks.round()
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        wrong = await end(wire, {**fields, "commitLogOffset": other["commitLogOffset"]}, how)
        assert (wrong.code, len(wire.running.halves)) == (1, 2)
        assert (await end(wire, fields, how)).code == 0
        assert await bodies(wire) == [b"t1"] * (how == COMMIT)
        assert len(wire.running.halves) == 1
        again = await end(wire, fields, COMMIT)
        assert again.code == 1
        clock.now += 60
        await wire.running.transaction_checks.round()
        assert (await end(wire, other, how)).code == 0
        assert await bodies(wire) == [b"t1", b"t2"] * (how == COMMIT)
        assert len(wire.running.halves) == 0


async def test_what_nobody_can_tell_is_given_up_after_the_last_check_and_kept() -> None:
    async with broker_in_memory(settings={"transaction-time-out": 0, "transaction-check-max": 3}) as wire:
        fields = await half(wire, "t1")
        for _ in range(3):
            await wire.running.transaction_checks.round()
        assert len(wire.running.halves) == 1
        assert wire.running.transaction_checks.unasked == 3
        await wire.running.transaction_checks.round()
        assert await bodies(wire, TRANS_CHECK_MAX_TIME_TOPIC) == [b"t1"]
        assert len(wire.running.halves) == 0
        assert wire.running.halves.given_up == 1
        assert (await end(wire, fields, COMMIT)).code == 1
        assert await bodies(wire) == []


async def test_a_commit_for_a_topic_that_was_deleted_meanwhile_is_dropped() -> None:
    async with broker_in_memory() as wire:
        await wire.send("orders", b"plain")
        fields = await half(wire, "t1")
        assert (await wire.broker(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})).code == 0
        assert (await end(wire, fields, COMMIT)).code == 0
        assert len(wire.running.halves) == 0
        assert wire.running.halves.dropped == 1


async def test_a_commit_for_a_queue_that_the_topic_has_no_more_goes_to_one_that_it_has() -> None:
    async with broker_in_memory() as wire:
        text = "UNIQ_KEY\x01t2\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
        await half(wire, "t1")  # makes the topic, with 4 queues
        answer = await wire.send("orders", b"t2", queue=3, properties=text, a="payers", f=4)
        named = {"tranStateTableOffset": answer.ext_fields["queueOffset"],
                 "commitLogOffset": str(int(answer.ext_fields["msgId"][-16:], 16))}  # fmt: skip
        fields = {"producerGroup": "payers", "msgId": "t2", "transactionId": "t2", **named}
        config = wire.running.topics.get("orders")
        assert config is not None
        wire.running.topics.put(replace(config, read_queue_nums=1, write_queue_nums=1))
        assert (await end(wire, fields, COMMIT)).code == 0
        assert await bodies(wire) == [b"t2"]


async def test_open_transactions_are_open_after_a_restart_and_ended_ones_are_not() -> None:
    storage = MemoryStorage()
    async with broker_in_memory(storage=storage) as wire:
        ended, kept = await half(wire, "t1"), await half(wire, "t2")
        assert (await end(wire, ended, COMMIT)).code == 0
    async with broker_in_memory(storage=storage) as wire:
        assert len(wire.running.halves) == 1
        assert (await end(wire, ended, COMMIT)).code == 1
        assert (await end(wire, kept, COMMIT)).code == 0
        assert await bodies(wire) == [b"t1", b"t2"]


async def test_checks_begin_after_the_time_out_and_come_in_intervals() -> None:
    clock = VirtualClock()
    async with broker_in_memory(clock=clock) as wire:
        await half(wire, "t1")
        checks = wire.running.transaction_checks
        with anyio.fail_after(PATIENCE):
            await clock.advance(29)
            assert checks.unasked == 0
            await clock.advance(2)
            while checks.unasked < 1:  # the store writes the copy in a thread
                await anyio.sleep(0.001)
            await clock.advance(30)
            while checks.unasked < 2:
                await anyio.sleep(0.001)


async def test_by_default_a_transaction_is_checked_15_times_in_30_s_each_and_then_kept_where_apache_keeps_it() -> None:
    clock, seen, kept = VirtualClock(), list[tuple[float, str]](), "TRANS_CHECK_MAX_TIME_TOPIC"
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run, anyio.create_task_group() as tasks:
        await run.store.durable(run.begin("t0"))
        await settle()
        tasks.start_soon(run.checks.run)
        asked = run.members.member.asked
        while not run.names(kept):
            before = len(asked)
            await clock.advance(30)
            with anyio.fail_after(PATIENCE):
                while len(asked) == before and not run.names(kept):  # the store writes the copy in a thread
                    await anyio.sleep(0.001)
            last = (run.messages(kept) or [decode_message(asked[-1].body)[0]])[-1]
            seen.append((clock.now, f"{last.topic} {last.properties['TRANSACTION_CHECK_TIMES']}"))
        await clock.advance(60)
        tasks.cancel_scope.cancel()
        assert seen == [*((30.0 * number, f"orders {number}") for number in range(1, 16)), (480.0, f"{kept} 15")]
        assert [message.body for message in run.messages(kept)] == [b"body of t0"]
        assert (len(asked), run.open_names(), run.names()) == (15, [], [])


async def test_the_offsets_of_the_group_follow_what_is_done_with() -> None:
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        for number in range(4):
            await run.store.durable(run.begin(f"t{number}"))
        await run.store.durable(run.end("t0", commit=True))
        await run.store.durable(run.end("t2", commit=False))
        await settle()
        await run.checks.round()
        assert run.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == 1
        await run.store.durable(run.end("t1", commit=True))
        await run.store.durable(run.end("t3", commit=True))
        await settle()
        await run.checks.round()
        assert run.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == 4
        await run.checks.round()
        assert run.offsets.get(TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, 0) == 4


async def test_a_message_that_is_immune_for_long_does_not_hold_up_the_queue() -> None:
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        await run.store.durable(run.begin("t0", "CHECK_IMMUNITY_TIME_IN_SECONDS\x013600\x02"))
        await settle()
        clock.now += 700
        await run.checks.round()
        copies: list[MessageExt] = run.messages(TRANS_HALF_TOPIC)
        assert [copy.properties.get("TRAN_PREPARED_QUEUE_OFFSET") for copy in copies] == [None, "0"]
        assert run.checks.asked == 0, "it was moved, and not checked"
        clock.now += 3000
        await run.checks.round()
        assert run.checks.asked == 1


async def test_the_clock_of_a_producer_does_not_matter() -> None:
    """Apache's age is by the sender's clock: one that is ahead was asked at once."""
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        clock.wall_is_ahead = 3600
        end_ = run.begin("t0")
        clock.wall_is_ahead = 0
        await run.store.durable(end_)
        await settle()
        await run.checks.round()
        assert run.checks.asked == 0
        clock.now += 6.5
        await run.checks.round()
        assert run.checks.asked == 1


async def test_each_transaction_is_asked_of_all_producers_in_their_turn() -> None:
    """One of them may have no checker. With as many transactions as producers each came to the same one every time."""
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        other = run.members.join()
        for name in ("t0", "t1"):
            await run.store.durable(run.begin(name))
        await settle()
        for _ in range(4):
            clock.now += 60
            await run.checks.round()
        for member in (run.members.member, other):
            assert sorted(run.asked(member)) == ["t0", "t0", "t1", "t1"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_producer_whose_clock_is_far_behind_is_asked_before_its_transaction_is_given_up(restarts: bool) -> None:
    """A copy of a half message, as each check leaves one, keeps the time of its birth alone: the sender's."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        await run.store.durable(run.begin("t0", born_ms=0))
        await settle()
        for _ in range(2):
            clock.now += 60
            await run.checks.round()
        assert run.asked(run.members.member) == ["t0", "t0"]
        if not restarts:
            return
    async with open_transactions(storage, SMALL, clock=clock) as run:
        clock.now += 60
        await run.checks.round()
        assert (run.given_up(), run.asked(run.members.member)) == ([], ["t0"])
        clock.now += 73 * 3600
        await run.checks.round()
        assert run.given_up() == ["t0"]


async def test_a_restart_asks_no_producer_too_soon_whose_clock_is_behind() -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        await run.store.durable(run.begin("t0", born_ms=clock.time_ms() - 3_600_000))
        await settle()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        clock.now += 5
        await run.checks.round()
        assert run.checks.asked == 0
        clock.now += 2
        await run.checks.round()
        assert run.checks.asked == 1


@pytest.mark.parametrize("ahead", [-7 * 86_400, -86_400, 0, 86_400], ids=["a week behind", "behind", "right", "ahead"])
async def test_a_restart_asks_about_a_moved_message_when_it_is_immune_no_longer(ahead: int) -> None:
    """A copy keeps the time of birth alone, which is the sender's: when the first half was stored is what counts."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        born_ms = clock.time_ms() + ahead * 1000
        await run.store.durable(run.begin("t0", "CHECK_IMMUNITY_TIME_IN_SECONDS\x017200\x02", born_ms=born_ms))
        await settle()
        clock.now += 700
        await run.checks.round()
        assert run.halves_stored() == ["t0", "t0"], "it was moved"
    async with open_transactions(storage, SMALL, clock=clock) as run:
        clock.now += 60
        await run.checks.round()
        clock.now += 6400
        await run.checks.round()
        assert run.checks.asked + run.checks.unasked == 0
        clock.now += 60
        await run.checks.round()
        assert (run.checks.asked, run.given_up()) == (1, [])


@pytest.mark.parametrize("fails", [False, True], ids=["damaged", "bad sector"])
async def test_a_first_half_that_cannot_be_read_keeps_nobody_from_being_asked(
    fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The age of its transaction is not to be had then, but for when its oldest copy was stored."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        for name in ("t0", "t1"):
            await run.store.durable(run.begin(name, born_ms=0))
        await settle()
        clock.now += 60
        await run.checks.round()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        read = run.store.read_record

        async def damaged(offset: int) -> bytes | None:
            if fails and not offset:
                raise OSError(errno.EIO, "Input/output error")
            record = await read(offset)
            return record if offset or record is None else record[:90] + bytes(len(record) - 90)

        monkeypatch.setattr(run.store, "read_record", damaged)
        for _ in range(2):
            await settle()
            clock.now += 60
            await run.checks.round()
        assert (run.given_up(), run.asked(run.members.member)) == ([], ["t0", "t1"] * 2)
    assert caplog.text.count("its first half message cannot be read") == 1


async def test_a_half_that_cannot_be_read_costs_no_other_a_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one whose check is counted and of which nobody is asked, nor one that is not checked at all."""
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        for name in ("t0", "t1", "t2", "t3"):
            await run.store.durable(run.begin(name, "CHECK_IMMUNITY_TIME_IN_SECONDS\x013600\x02" * (name == "t3")))
        await settle()
        read, bad = run.store.read_record, sorted(half.log_offset for half in run.halves.due(float("inf")))[1]

        async def fails_once_there(offset: int) -> bytes | None:
            if offset == bad:
                raise OSError(errno.EIO, "Input/output error")
            return await read(offset)

        monkeypatch.setattr(run.store, "read_record", fails_once_there)
        clock.now += 700
        for _ in range(3):
            await run.checks.round()
        assert run.asked(run.members.member) == ["t0", "t2"] * 3
        assert "t3" in run.halves_stored()[4:], "it was moved"
        assert caplog.text.count("half message 1 cannot be read, and its check waits: ") == 1
        monkeypatch.setattr(run.store, "read_record", read)
        await run.checks.round()
        assert sorted(run.asked(run.members.member)[6:]) == ["t0", "t1", "t2"]


async def test_who_was_checked_before_the_disk_was_full_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        for name in ("t0", "t1", "t2"):
            await run.store.durable(run.begin(name))
        await settle()
        renew = run.halves.renew

        def full_from_the_second_on(half: Half, message: MessageExt, *, checked: bool) -> int:
            if half.queue_offset:
                raise StoreFullError("no room", "disk full")
            return renew(half, message, checked=checked)

        monkeypatch.setattr(run.halves, "renew", full_from_the_second_on)
        clock.now += 60
        with pytest.raises(StoreFullError, match="no room"):
            await run.checks.round()
        assert [half.checks for half in run.halves.due(clock.now)] == [0, 0, 1]
        assert run.asked(run.members.member) == ["t0"]


async def test_a_clock_that_jumps_ahead_gives_no_transaction_up() -> None:
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        await run.store.durable(run.begin("t0"))
        await settle()
        clock.now += 10
        clock.wall_is_ahead = 10 * 365 * 86_400
        await run.checks.round()
        clock.wall_is_ahead = 0
        clock.now += 60
        await run.checks.round()
        assert (run.given_up(), run.checks.asked) == ([], 2)


@pytest.mark.parametrize("moved", [False, True], ids=["as it was sent", "a copy"])
async def test_a_clock_that_has_jumped_ahead_at_a_restart_gives_no_transaction_up(moved: bool) -> None:
    """A machine begins with a wrong clock, which is put right later."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        await run.store.durable(run.begin("t0"))
        await settle()
        if moved:
            clock.now += 60
            await run.checks.round()
    clock.wall_is_ahead = 10 * 365 * 86_400
    async with open_transactions(storage, SMALL, clock=clock) as run:
        clock.now += 30
        await run.checks.round()
        assert (run.given_up(), run.checks.asked, run.open_names()) == ([], 1, ["t0"])
        clock.wall_is_ahead = 0
        clock.now += 4 * 86_400
        await run.checks.round()
        assert (run.given_up(), run.checks.asked, run.open_names()) == (["t0"], 1, [])


async def test_copies_and_marks_of_apache_are_understood() -> None:
    """Its marks name many half messages at once, and its copies no place of another."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        for number in range(5):
            await run.store.durable(run.begin(f"t{number}"))
        mark = StoredMessage(TRANS_OP_HALF_TOPIC, 0, b"0,1,3,", b"TAGS\x01d\x02")
        await run.store.durable(run.store.put(mark).end_offset)
    async with open_transactions(storage, SMALL, clock=clock) as run:
        assert run.open_names() == ["t2", "t4"]


async def test_one_way_ends_count_too() -> None:
    async with broker_in_memory() as wire:
        fields = await half(wire, "t1")
        request = RemotingCommand.request(
            RequestCode.END_TRANSACTION, {**fields, "commitOrRollback": str(COMMIT), "fromTransactionCheck": "false"}
        )
        await wire.client.send_oneway(wire.broker_address, request, timeout=3)
        with anyio.fail_after(PATIENCE):
            while not await bodies(wire):
                await RealClock().sleep(0.01)


@pytest.mark.parametrize("by", ["commit", "pull"])
async def test_no_client_says_how_far_the_transactions_are(by: str) -> None:
    """A restart would forget those that are open, and have those checked once more that have ended."""
    storage = MemoryStorage()
    async with broker_in_memory(storage=storage) as wire:
        ended = await half(wire, "ended")
        assert (await end(wire, ended, COMMIT)).code == 0
        await half(wire, "open")
        for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
            if by == "pull":
                answer = await wire.pull(topic, group=TRANSACTION_GROUP, commit=1)
            else:
                fields = {"consumerGroup": TRANSACTION_GROUP, "topic": topic, "queueId": 0, "commitOffset": 1}
                answer = await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            assert (answer.code, TRANSACTION_GROUP in (answer.remark or "")) == (16, True)
    async with broker_in_memory(storage=storage) as wire:
        assert len(wire.running.halves) == 1
        assert (await end(wire, ended, COMMIT)).code == 1
        assert await bodies(wire) == [b"ended"]


async def test_nobody_sends_the_mark_of_an_end_by_way_of_the_topic_where_messages_wait() -> None:
    """What waits there goes to the topic that it names, which may be that of the marks: a restart would believe it."""
    mark = f"REAL_TOPIC\x01{TRANS_OP_HALF_TOPIC}\x02REAL_QID\x010\x02TAGS\x01d\x02"
    async with broker_in_memory() as wire:
        await half(wire, "open")
        refused = await wire.send(TIMER_TOPIC, b"0,", properties=mark)
        assert (refused.code, "is forbidden" in (refused.remark or "")) == (16, True)
        wire.running.store.put(StoredMessage(TIMER_TOPIC, 0, b"0,", mark.encode()))  # as a store of before may hold it
        with anyio.fail_after(PATIENCE):
            while not await wire.messages(UNDELIVERED_TOPIC):
                await RealClock().sleep(0.01)
        assert await wire.messages(TRANS_OP_HALF_TOPIC) == []


async def test_an_offset_that_no_queue_has_come_to_hides_no_transaction() -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        for name in ("t0", "t1"):
            await run.store.durable(run.begin(name))
        await run.store.durable(run.end("t0", commit=True))
        run.offsets.commit(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0, 1_000)
        run.offsets.commit(TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, 0, 1_000)
        offsets = offsets_text(run)
    async with open_transactions(storage, SMALL, clock=clock, offsets=offsets) as run:
        assert run.open_names() == ["t1"]


async def test_offsets_of_a_log_that_is_gone_hide_no_transaction_either_when_its_queue_has_grown_past_them() -> None:
    """``config/`` may stay where the log was cleared, or restored as it was before."""
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        for number in range(5):
            await run.store.durable(run.begin(f"before {number}"))
            await run.store.durable(run.end(f"before {number}", commit=True))
            await settle()
        await run.checks.round()
        await run.checks.round()
        offsets = offsets_text(run)
        assert [run.offsets.get(TRANSACTION_GROUP, topic, 0) for topic in QUEUES] == [5, 5]
    storage = MemoryStorage()
    async with open_transactions(storage, SMALL, clock=clock, offsets=offsets) as run:
        await run.store.durable(run.begin("open", "CHECK_IMMUNITY_TIME_IN_SECONDS\x01300\x02"))
        for number in range(6):
            await run.store.durable(run.begin(f"t{number}"))
            await run.store.durable(run.end(f"t{number}", commit=True))
            await settle()
        await run.checks.round()
        offsets = offsets_text(run)
    async with open_transactions(storage, SMALL, clock=clock, offsets=offsets) as run:
        assert run.open_names() == ["open"]


async def test_offsets_of_later_hide_no_transaction_of_a_store_that_was_copied_while_it_was_open() -> None:
    storage, before, clock = FaultyStorage(), FaultyStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        await run.store.durable(run.begin("ended"))
        await run.store.durable(run.end("ended", commit=True))
        await run.store.durable(run.begin("open"))
        await settle()
        before.take(storage)
        await run.store.durable(run.end("open", commit=True))
        for number in range(3):
            await run.store.durable(run.begin(f"t{number}"))
            await run.store.durable(run.end(f"t{number}", commit=True))
            await settle()
        await run.checks.round()
        await run.checks.round()
        offsets = offsets_text(run)
        assert [run.offsets.get(TRANSACTION_GROUP, topic, 0) for topic in QUEUES] == [5, 5]
    async with open_transactions(before, SMALL, clock=clock, offsets=offsets) as run:
        assert run.store.report is not None
        assert not run.store.report.clean
        assert run.open_names() == ["open"]


@pytest.mark.parametrize("topic", range(2))
async def test_of_two_offsets_none_is_believed_where_the_other_one_is_of_another_log(topic: int) -> None:
    """By marks of the one and half messages of the other whatever has ended would be open."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        for name in ("t0", "t1"):
            await run.store.durable(run.begin(name))
            await run.store.durable(run.end(name, commit=True))
            await settle()
        await run.store.durable(run.begin("open"))
        for number, each in enumerate(QUEUES):
            run.offsets.commit(TRANSACTION_GROUP, each, 0, 1_000 if number == topic else 2)
        offsets = offsets_text(run)
    async with open_transactions(storage, SMALL, clock=clock, offsets=offsets) as run:
        assert run.open_names() == ["open"]
        assert [run.offsets.get(TRANSACTION_GROUP, each, 0) for each in QUEUES] == [0, 0]


async def test_no_mark_is_passed_over_while_the_offset_of_half_messages_is_one_too_many() -> None:
    """``max-offsets``: there is room for one of the two."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock, max_offsets=1) as run:
        for name in ("t0", "t1", "t2"):
            await run.store.durable(run.begin(name))
            await run.store.durable(run.end(name, commit=True))
            await settle()
            await run.checks.round()
        await run.checks.round()
        assert [run.offsets.get(TRANSACTION_GROUP, each, 0) for each in QUEUES] == [3, None]
        offsets = offsets_text(run)
    async with open_transactions(storage, SMALL, clock=clock, offsets=offsets) as run:
        assert run.open_names() == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_clock_that_was_wrong_gives_no_transaction_up_at_a_restart_before_anybody_was_asked(when: str) -> None:
    """It was far behind, or has jumped ahead, and a message has come since: its time looks right."""
    storage, clock = MemoryStorage(), VirtualClock()
    clock.wall_is_ahead = -10 * 86_400 if when == "before" else 0
    async with open_transactions(storage, SMALL, clock=clock) as run:
        await run.store.durable(run.begin("t0"))
        await settle()
        clock.wall_is_ahead = 0 if when == "before" else 10 * 86_400
        await run.store.durable(run.store.put(StoredMessage("bills", 0, b"x")).end_offset)
        clock.now += 5
    async with open_transactions(storage, SMALL, clock=clock) as run:
        await run.checks.round()
        await settle()
        assert (run.given_up(), run.open_names(), run.asked(run.members.member)) == ([], ["t0"], ["t0"])


async def test_an_end_of_a_transaction_that_is_lost_ends_none_that_lies_in_its_place() -> None:
    """As by a power failure while the disk is not waited for, or in a store that is as it was before."""
    storage, clock = FaultyStorage(), VirtualClock()
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        before = FaultyStorage()
        before.take(storage)
        lost = await half(wire, "lost")
    async with broker_in_memory(storage=before, clock=clock) as wire:
        there = await half(wire, "there")
        assert {**lost, "msgId": "", "transactionId": ""} == {**there, "msgId": "", "transactionId": ""}, "one place"
        refused = await end(wire, lost, COMMIT)
        assert (refused.code, refused.remark) == (1, "The half message there is of another transaction")
        assert (await end(wire, there, ROLL_BACK)).code == 0
        assert await bodies(wire) == []


@pytest.mark.parametrize(
    "said", [{"msgId": "t1"}, {"transactionId": "t1"}, {"msgId": "another", "transactionId": "t1"}, {}]
)
async def test_an_end_counts_that_says_one_id_of_its_transaction_or_none(said: dict[str, str]) -> None:
    async with broker_in_memory() as wire:
        fields = await half(wire, "t1")
        place = {name: text for name, text in fields.items() if name not in ("msgId", "transactionId")}
        assert (await end(wire, {**place, **said}, COMMIT)).code == 0
        assert await bodies(wire) == [b"t1"]


async def test_a_half_message_is_taken_only_if_its_checks_can_be_written_to_it() -> None:
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        text = "pad\x01%s\x02"
        ends = (_taken_until(run, text % ("x" * size)) for size in range(32_767, 32_000, -1))
        await run.store.durable(next(end_ for end_ in ends if end_ is not None))
        await settle()
        for _ in range(16):
            clock.now += 60
            await run.checks.round()
        assert run.given_up() == ["t0"]


async def test_a_half_message_is_taken_only_if_its_end_fits_behind_it() -> None:
    """Both lie in one file of the commit log."""
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), SMALL, clock=clock) as run:
        size = SMALL.mapped_file_size_commit_log
        ends: list[int] = []
        while not ends:
            size -= 100
            with suppress(InvalidMessageError):
                ends.append(run.begin("t0", body=b"x" * size))
        await run.store.durable(ends[0])
        await settle()
        clock.now += 60
        await run.checks.round()
        assert run.checks.asked == 1
        await run.store.durable(run.end("t0", commit=True))
        assert run.names() == ["t0"]


def _taken_until(run: OpenTransactions, properties: str) -> int | None:
    """Where a half message ends that is taken."""
    try:
        return run.begin("t0", properties)
    except InvalidMessageError:
        return None


async def test_no_immunity_keeps_a_transaction_for_longer_than_messages_are_kept() -> None:
    clock = VirtualClock()
    options = replace(SMALL, file_reserved_time="3h")
    async with open_transactions(MemoryStorage(), options, clock=clock) as run:
        await run.store.durable(run.begin("t0", "CHECK_IMMUNITY_TIME_IN_SECONDS\x01999999999\x02"))
        await settle()
        clock.now += 10_700
        await run.checks.round()
        assert (run.given_up(), len(run.halves)) == ([], 1)
        clock.now += 200
        await run.checks.round()
        assert run.given_up() == ["t0"]
        assert run.checks.asked == 0


async def test_a_restart_keeps_no_transaction_that_is_immune_for_longer_than_messages_are_kept() -> None:
    """How old it is only its record says then: somebody is asked first."""
    storage, clock = MemoryStorage(), VirtualClock()
    options = replace(SMALL, file_reserved_time="3h")
    async with open_transactions(storage, options, clock=clock) as run:
        await run.store.durable(run.begin("t0", "CHECK_IMMUNITY_TIME_IN_SECONDS\x01999999999\x02"))
        await settle()
        clock.now += 10_700
        await run.store.durable(run.store.put(StoredMessage("bills", 0, b"x")).end_offset)
    async with open_transactions(storage, options, clock=clock) as run:
        await run.checks.round()
        assert (run.given_up(), run.checks.asked, run.open_names()) == ([], 0, ["t0"])
        clock.now += 200
        await run.checks.round()
        assert (run.given_up(), run.checks.asked, run.open_names()) == ([], 1, ["t0"])
        await run.checks.round()
        assert (run.given_up(), run.checks.asked, run.open_names()) == (["t0"], 1, [])


@pytest.mark.parametrize("starts_anew", [False, True])
async def test_an_end_counts_that_names_the_first_place_however_often_the_half_was_moved(starts_anew: bool) -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        fields = await half(wire, "t1", "CHECK_IMMUNITY_TIME_IN_SECONDS\x0186400\x02")
        for _ in range(70):
            clock.now += 601
            await wire.running.transaction_checks.round()
        assert len(await bodies(wire, TRANS_HALF_TOPIC)) == 71
        if not starts_anew:
            assert (await end(wire, fields, COMMIT)).code == 0
            assert await bodies(wire) == [b"t1"]
            return
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        assert (await end(wire, fields, COMMIT)).code == 0
        assert await bodies(wire) == [b"t1"]


async def test_no_offset_is_kept_behind_a_half_whose_copy_is_not_durable_yet() -> None:
    async with open_transactions(MemoryStorage(), SMALL) as run:
        await run.store.durable(run.begin("t1"))
        (one,) = run.halves.due(float("inf"))
        moved = run.halves.renew(one, run.read(one.log_offset), checked=False)
        run.halves.commit_offsets()  # nothing was written meanwhile
        assert (run.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) or 0) == 0
        await run.store.durable(moved)
        await settle()
        run.halves.commit_offsets()
        assert run.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == 1
