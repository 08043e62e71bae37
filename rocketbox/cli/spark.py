"""``rocketbox spark reset``: letting a Spark listener begin anew. Holds arguments and what is printed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from rocketbox.cli.service import (
    CONTEXT_SETTINGS,
    Config,
    Debug,
    Profile,
    failures_told,
    load_application,
    sort_out_settings,
)
from rocketbox.errors import ConfigurationError, Finding, NoRouteError

if TYPE_CHECKING:
    from rocketbox.autoconfigure.assembly import Assembly
    from rocketbox.spark.lease import LeaseAnswer

__all__ = ["spark"]

spark = typer.Typer(no_args_is_help=True, help="Look after what Spark listeners keep.")

Target = Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help="Where the RocketBox is, for --group.")]


@spark.callback()
def root() -> None:
    """Look after what Spark listeners keep."""  # with one command alone, typer would leave its name out


@spark.command("reset", context_settings=CONTEXT_SETTINGS)
def reset(
    context: typer.Context,
    target: Target = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The folder of the checkpoint.")] = None,
    group: Annotated[str | None, typer.Option(help="The consumer group of the listener.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, what it would do is printed.")] = False,
    config: Config = None,
    profile: Profile = None,
    debug: Debug = False,
) -> None:
    """Show what the checkpoint of a Spark listener holds, and with --yes set it aside: the listener begins anew.

    Its next start is a new query, which begins where starting_offsets says (group: where the group stands), with a new
    query id and with batch 0. What it reads again, a sink that knows rows by query id and batch takes for new. The
    folder is moved, not removed. Nothing is done while a listener uses it: on this machine, or, with --group, anywhere.

    Any setting may follow as --KEY=VALUE. Status: 0 it was set aside; 1 it was not.
    """
    target, arguments = sort_out_settings(context, target)
    with failures_told(debug):
        from rocketbox.spark.checkpoint_folder import read_checkpoint, set_aside

        if (checkpoint is None) == (group is None):
            raise _wrong("which checkpoint is meant?", "say --checkpoint FOLDER, or MODULE:APP and --group GROUP")
        if group is not None:
            if target is None:
                raise _wrong("--group needs the application", "write rocketbox spark reset MODULE:APP --group GROUP")
            application = load_application(target)
            assembly = application.look(config=config, profiles=tuple(profile or ()), arguments=arguments)
            plan = _plan_of(assembly, group)
            folder = _folder(plan.checkpoint)
            _refuse_if_leased(assembly, plan)
        else:
            folder = _folder(str(checkpoint))
        content = read_checkpoint(folder)
        _say(f"checkpoint {folder}, query {content.query_id}")
        if content.batch is None:
            _say("no batch was begun")
        else:
            state = "done" if content.done else "begun and not done: it would come again"
            _say(f"the last batch, {content.batch}, is {state}; with it were read:")
        for place in content.places:
            _say(f"  {place}")
        _say(
            "without it the listener begins anew, where its starting_offsets say (group: where the group stands), with "
            "a new query id: what is read again, a sink takes for new"
        )
        if not yes:
            _say("nothing is done: say --yes")
            raise typer.Exit(1)
        _say(f"it is set aside as {set_aside(folder)}; remove that when nobody needs it any more")


def _plan_of(assembly: Assembly, group: str) -> Any:
    from rocketbox.autoconfigure.spark_listening import SparkPlan

    plans = [plan for plan in assembly.plans if isinstance(plan, SparkPlan)]
    found = [plan for plan in plans if plan.group == group]
    if len(found) == 1:
        return found[0]
    if found:
        held = ", ".join(plan.checkpoint for plan in found)
        raise _wrong(f"group {group!r} has {len(found)} Spark listeners", f"name one by --checkpoint: {held}")
    known = ", ".join(sorted({plan.group for plan in plans})) or "none"
    findings = [finding for finding in assembly.findings if "Spark" in finding.what]
    raise ConfigurationError(
        [Finding(f"no Spark listener of group {group!r} is planned", "--group", f"there are: {known}"), *findings]
    )


def _folder(checkpoint: str) -> Path:
    from rocketbox.spark.paths import local_folder

    folder = local_folder(checkpoint)
    if folder is None:
        raise _wrong(
            f"the checkpoint {checkpoint} is not on this machine",
            "stop the listener, and rename or remove it with the tools of its file system",
        )
    return folder


def _refuse_if_leased(assembly: Assembly, plan: Any) -> None:
    """Raise when another driver, on whatever machine, holds the lease of the listener's query, or nobody says."""
    own = assembly.rocketmq.cluster(plan.cluster or "")
    if own.name_server is None or own.is_embedded:
        return  # its servers run inside of the service, on this machine
    answer = anyio.run(partial(_lease_answer, assembly, own, plan))
    if answer is None or answer.held:
        return
    if answer.by_another:
        from rocketbox.spark.lease import LOCK_LIFETIME

        raise _wrong(
            f"a query of group {plan.group} for topic {plan.topic} runs: {answer.why}",
            "stop it first, all of its replicas; or, where it was killed, wait: the lease of one that is dead ends "
            f"within {LOCK_LIFETIME:.0f} s",
        )
    raise _wrong(
        f"whether a query of group {plan.group} for topic {plan.topic} runs is not known: {answer.why}",
        "wait until all brokers of the topic answer; or, where none runs on any machine, name its folder by "
        "--checkpoint",
    )


async def _lease_answer(assembly: Assembly, own: Any, plan: Any) -> LeaseAnswer | None:
    """What brokers say to who asks for the lease, which is given back at once; None: the topic does not exist."""
    from rocketbox.autoconfigure.properties import cluster_prefix
    from rocketbox.autoconfigure.users import CredentialsBean
    from rocketbox.spark.lease import Lease

    client = assembly.clients.clusters[plan.cluster or ""].groups[plan.group]
    async with AsyncExitStack() as stack:
        if isinstance(keys := client.user.credentials, CredentialsBean):
            await keys.start(stack)
        options = client.options(own, cluster_prefix(plan.cluster))
        instance = await stack.enter_async_context(assembly.service.client(own.name_server, options))
        lease = Lease(instance, plan.group, plan.topic, holder=f"{instance.client_id}@reset")
        try:
            answer = await lease.take()
        except NoRouteError:  # nobody reads a topic that does not exist
            return None
        await lease.release()
    return answer


def _wrong(what: str, fix: str) -> ConfigurationError:
    return ConfigurationError(Finding(what, "the command line", fix))


def _say(text: str) -> None:
    print(text)  # noqa: T201 - what the command is for
