"""The job: sends the departures through the service, waits until everything has arrived, and checks it."""

from __future__ import annotations

import sys
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from rocketbox import RemotingError, RocketBox, RocketMQTemplate
from rocketbox.client import Admin, MQClientInstance
from rocketbox.errors import BrokerError, NoRouteError
from rocketbox.message import MessageExt, MessageQueue
from starter_examples.flight_desk.app import DeskProperties
from starter_examples.flight_desk.data import Expected, expect
from starter_examples.flight_desk.ledger import Ledger
from starter_examples.flight_desk.model import Alert, Departure

__all__ = ["Report", "run_job"]

STALLED_AFTER = 120.0  # seconds without any progress
SEND_TRIES = 5  # a busy broker, or one that is being restarted, is asked again; repeats are counted by the audit


class RateColumn(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")


@dataclass
class Report:
    """What was found, and where it differs from what must be there."""

    expected: Expected
    counts: dict[str, int] = field(default_factory=dict)
    delays: list[tuple[str, str, int, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def check(self, name: str, found: int, wanted: int) -> None:
        self.counts[name] = found
        if found != wanted:
            self.problems.append(f"{name}: {found:,} instead of {wanted:,}")

    def print(self, console: Console, seconds: float) -> None:
        table = Table(title="Flight desk", title_justify="left")
        table.add_column("what")
        table.add_column("count", justify="right")
        for name, count in self.counts.items():
            table.add_row(name, f"{count:,}")
        console.print(table)
        if self.delays:
            delays = Table(title="Mean delay by carrier", title_justify="left")
            for column in ("carrier", "airline", "departures", "mean delay (min)"):
                delays.add_column(column, justify="left" if column in ("carrier", "airline") else "right")
            for carrier, airline, departures, mean in self.delays:
                delays.add_row(carrier, airline, f"{departures:,}", f"{mean:.1f}")
            console.print(delays)
        for problem in self.problems:
            console.print(f"[red]WRONG[/red] {escape(problem)}")
        if not self.problems:
            console.print(f"[green]all counts are right[/green] ({seconds:.1f} s)")


async def send_departures(app: RocketBox, departures: Sequence[Departure], ledger: Ledger, tasks: int) -> None:
    """Send from ``tasks`` tasks. A flight's departures are of one task, which awaits each send: they keep order."""
    template = app.get(RocketMQTemplate)
    shares: list[list[Departure]] = [[] for _ in range(tasks)]
    for departure in departures:
        shares[zlib.crc32(departure.key.encode()) % tasks].append(departure)

    async def send(departure: Departure) -> None:
        for attempt in range(1, SEND_TRIES + 1):
            try:
                await template.send(
                    f"departures:{departure.carrier}",
                    departure,
                    keys=departure.key,
                    hash_key=departure.key,
                    headers={"run": ledger.run},
                )
            except (RemotingError, BrokerError, NoRouteError):
                if attempt == SEND_TRIES:
                    raise
                await anyio.sleep(attempt)
            else:
                ledger.saw_sent()
                return

    async def send_share(share: list[Departure]) -> None:
        for departure in share:
            await send(departure)

    async with anyio.create_task_group() as group:
        for share in shares:
            group.start_soon(send_share, share)


class Found:
    """Reads a topic from where it ended when the job began."""

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._start: dict[MessageQueue, int] = {}

    async def _queues(self) -> list[MessageQueue]:
        try:
            return await self._admin.queues(self._topic)
        except NoRouteError:
            return []  # nobody has sent to it yet

    async def begin(self) -> None:
        self._start = {queue: await self._admin.max_offset(queue) for queue in await self._queues()}

    async def messages(self) -> list[MessageExt]:
        found: list[MessageExt] = []
        for queue in await self._queues():
            offset, end = self._start.get(queue, 0), await self._admin.max_offset(queue)
            while offset < end:
                pulled = await self._admin.pull(queue, offset, 32)
                found += pulled.messages
                offset = pulled.next_begin_offset
        return found


@contextmanager
def progress_of(app: RocketBox, console: Console, ledger: Ledger, expected: Expected, lake: bool) -> Iterator[Bars]:
    columns = (
        TextColumn("{task.description:<6}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, speed_estimate_period=10) as progress:
        yield Bars(progress, app, ledger, expected, lake)


class Bars:
    """A bar for the sender and one for each listener."""

    def __init__(self, progress: Progress, app: RocketBox, ledger: Ledger, expected: Expected, lake: bool) -> None:
        self._progress = progress
        self._app = app
        self._ledger = ledger
        totals = {"sent": expected.sent, "desk": expected.desk, "audit": expected.sent}
        if lake:
            totals["lake"] = expected.sent
        self._bars: dict[str, TaskID] = {
            name: progress.add_task(name, total=total) for name, total in totals.items()
        }  # fmt: skip

    def seen(self) -> dict[str, int]:
        ledger = self._ledger
        return {
            "sent": ledger.sent,
            "desk": len(ledger.desk_rows),
            "audit": len(ledger.audit_rows),
            "lake": ledger.lake_rows,
        }

    def update(self) -> None:
        seen = self.seen()
        for name, bar in self._bars.items():
            self._progress.update(bar, completed=seen[name])

    def missing(self) -> list[str]:
        """What has not arrived yet, in words."""
        seen = self.seen()
        if lake_failure(self._app) is not None:  # it will not come, and the rest goes on without it
            seen["lake"] = sys.maxsize
        return [
            f"{name}: {seen[name]:,} of {self._progress.tasks[bar].total or 0:,.0f}"
            for name, bar in self._bars.items()
            if seen[name] < (self._progress.tasks[bar].total or 0)
        ]


async def run_job(app: RocketBox, departures: Sequence[Departure], *, lake: bool, console: Console) -> Report:
    """Everything from the first send to the checked counts. The service is running."""
    properties = app.get(DeskProperties)
    ledger = app.get(Ledger)
    ledger.run = uuid.uuid4().hex
    report = Report(expect(departures, properties.threshold_minutes))
    expected = report.expected
    async with Admin(instance=app.get(MQClientInstance)) as admin:
        alerts, dead = Found(admin, "alerts"), Found(admin, "%DLQ%desk")
        await alerts.begin()
        await dead.begin()

        async def alerts_of_run() -> list[Alert]:
            found = [Alert.model_validate_json(message.body) for message in await alerts.messages()]
            return [alert for alert in found if alert.run == ledger.run]

        async def rejected_rows() -> set[int]:
            return {
                Departure.model_validate_json(message.body).row
                for message in await dead.messages()
                if message.properties.get("run") == ledger.run
            }

        with progress_of(app, console, ledger, expected, lake) as bars:
            async with anyio.create_task_group() as group:
                group.start_soon(send_departures, app, departures, ledger, properties.senders)
                if problem := await wait_until_done(ledger, bars, lambda: lake_state(app)):
                    group.cancel_scope.cancel()
                    report.problems += problem
        # The last alert comes by the redelivery of the one that failed at first, and rejections end in their queue.
        alerted: list[Alert] = []
        rejected: set[int] = set()
        with anyio.move_on_after(STALLED_AFTER):
            while not report.problems:
                alerted, rejected = await alerts_of_run(), await rejected_rows()
                if len({alert.row for alert in alerted}) >= expected.alerts and len(rejected) >= expected.rejected:
                    break
                await anyio.sleep(0.2)
    report.check("sent", ledger.sent, expected.sent)
    report.check("audit: distinct rows", len(ledger.audit_rows), expected.sent)
    report.check("desk: distinct rows", len(ledger.desk_rows), expected.desk)
    report.check("desk: alerts", len({alert.row for alert in alerted}), expected.alerts)
    report.check("desk: rejected, in the dead-letter queue", len(rejected), expected.rejected)
    report.check("lost", len({departure.row for departure in departures} - ledger.audit_rows), 0)
    report.counts["redelivered (desk and audit)"] = ledger.desk_redelivered + ledger.audit_redelivered
    if expected.alerts and not report.counts["redelivered (desk and audit)"]:
        report.problems.append("no redelivery was seen, and one alert fails at first")
    report.problems += ledger.out_of_order[:10]
    if lake:
        await check_lake(app, ledger, report)
    return report


async def wait_until_done(ledger: Ledger, bars: Bars, state: Callable[[], object] = lambda: None) -> list[str]:
    """Return when every bar is full, or with what is missing when nothing has moved for two minutes.

    A change of ``state()`` is a move as well: after a kill the lake stands by for a minute before its session begins.
    """
    moved: tuple[int, object] = (-1, None)
    since = anyio.current_time()
    while missing := bars.missing():
        bars.update()
        if (now := (ledger.steps, state())) != moved:
            moved, since = now, anyio.current_time()
        elif anyio.current_time() - since > STALLED_AFTER:
            return [f"nothing has moved for {STALLED_AFTER:.0f} s; missing are {', '.join(missing)}"]
        await anyio.sleep(0.1)
    bars.update()
    return []


def lake_state(app: RocketBox) -> object:
    """What the lake's listener does at the moment: starting, standing by, running and so on."""
    listener = app.listeners.get("lake")
    return listener and listener.status


def lake_failure(app: RocketBox) -> str | None:
    """Why the lake's listener does not run (no Java), if it does not."""
    listener = app.listeners.get("lake")
    return str(listener.error) if listener is not None and listener.has_ended else None


async def check_lake(app: RocketBox, ledger: Ledger, report: Report) -> None:
    """Read back what the lake has kept of this run."""
    from starter_examples.flight_desk import lake

    if failure := lake_failure(app):
        report.problems.append(f"lake: {failure}")
        return
    path = app.get(lake.LakeProperties).path
    if not path.exists():  # it has kept nothing yet, which was told where it was waited for
        report.check("lake: rows", 0, report.expected.sent)
        return
    spark = await app.listeners["lake"].session()

    def read() -> tuple[int, int, int, int, list[tuple[str, str, int, float]]]:
        rows = lake.rows_of_run(spark, path, ledger.run).cache()
        try:
            with_delay = rows.where("delay_minutes is not null").count()
            return rows.count(), with_delay, *lake.faults(spark, path), lake.mean_delays(rows)
        finally:
            rows.unpersist()

    rows, with_delay, left_out, twice, report.delays = await anyio.to_thread.run_sync(read)
    report.check("lake: rows", rows, report.expected.sent)
    report.check("lake: rows with a delay", with_delay, report.expected.with_delay)
    report.check("lake: messages left out", left_out, 0)
    report.check("lake: messages kept twice", twice, 0)
