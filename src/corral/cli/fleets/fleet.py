"""`corral fleet`: draws a fleet, and the time line of its last scale-out.

A fleet is an Auto Scaling group or an ECS service that is scaled by a policy or a capacity provider. The workers are the instances
of the group, or the tasks of the service. `search.py` finds the fleet, and `facts.py` reads its data.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from corral.cli.client import owners
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, find_endpoint, is_aws
from corral.cli.fleets.facts import read_fleet
from corral.cli.fleets.history import WINDOW_S
from corral.cli.fleets.search import WorkerFleet, find_fleet
from corral.cli.printing.errors import CliError, error_line
from corral.cli.printing.live_screen import draw_graph, one_line, plain_table, read_keys, styled
from corral.cli.printing.output import SHORT_ID, age, ago, console, count, print_json, shorten_ids
from corral.cli.runs.completion import complete_fleets

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from corral.cli.printing.safe_text import SafeText

REFRESH_S, AWS_REFRESH_S = 1.0, 10.0
GRAPH_MAX, BAR_MAX, USER_MAX = 60, 40, 12
# The name of an alarm that a target tracking policy has created
TRACKING_ALARM = re.compile(r"TargetTracking-\S+-(Alarm(?:High|Low))-[0-9a-f]{8}-[0-9a-f-]{27}")
COLOURS = {"ALARM": "yellow", "OK": "green"}


@click.command(short_help="Watch workers that a policy scales, and their last scale-out.")
@click.argument("name", required=False, shell_complete=complete_fleets)
@data_option
@click.option("--once", is_flag=True, help="Print once and exit. Default if the output is not a terminal.")
@click.option("--mine", is_flag=True, help="Only workers of your own.")
@click.option("--json", "as_json", is_flag=True, help="Print one sample as JSON.")
def fleet(name: str | None, data: DataFolder, once: bool, mine: bool, as_json: bool) -> None:
    """Draw the fleet NAME: its queue, its workers, its scaling policies, and the time line of its last scale-out.

    NAME is an Auto Scaling group with a scaling policy, a capacity provider, an ECS service that is registered with Application
    Auto Scaling (SERVICE or CLUSTER/SERVICE), or a stack with one of them. If there is only one fleet, you
    can omit NAME. The screen is refreshed until you press q.
    """
    endpoint = find_endpoint(data)
    if mine and is_aws(endpoint):
        raise click.UsageError("--mine works with a Corral server.")
    owner = owners.own(endpoint) if mine else ""
    found = find_fleet(endpoint, name)
    state = _read(endpoint, found, owner)
    if as_json:
        print_json(state)
    elif once or not sys.stdout.isatty():
        out = console()
        out.print(frame(state, out.width))
    else:
        _watch(endpoint, found, state, owner)


def _read(endpoint: Endpoint, found: WorkerFleet, owner: str) -> dict[str, Any]:
    """Return the state of a fleet. With `owner`, only its workers are listed."""
    state = read_fleet(endpoint, found)
    return {**state, "tasks": [each for each in state["tasks"] if each.get("owner") == owner]} if owner else state


def _watch(endpoint: Endpoint, found: WorkerFleet, state: dict[str, Any], owner: str) -> None:
    from rich.live import Live

    out, trouble = console(), ""
    refresh_s = AWS_REFRESH_S if is_aws(endpoint) else REFRESH_S
    with read_keys() as key, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(state, out.width, trouble), refresh=True)
            if key(refresh_s) in ("q", "Q", "\x1b", "\x03"):
                return
            try:
                state, trouble = _read(endpoint, found, owner), ""
            except Exception as error:
                trouble = error.message if isinstance(error, CliError) else error_line(error) or repr(error)


def frame(state: dict[str, Any], width: int, trouble: str = "") -> RenderableType:
    """Return the content of one screen."""
    from rich.console import Group

    from corral.cli.printing.safe_text import SafeText

    parts: list[RenderableType] = [_head(state, width)]
    if trouble:
        parts.append(one_line(SafeText(trouble, style="bold red")))
    parts += [SafeText(), _levels(state, width)]
    if state["crashes"] is not None:
        parts += [SafeText(), SafeText(_crashes(state), style="bold red")]
    for policy in state["policies"]:
        parts += [SafeText(), *_policy(policy, state)]
    if state["provider"] is not None:
        parts += [SafeText(), _provider(state)]
    if state["tasks"]:
        parts += [SafeText(), _tasks(state)]
    if state["activity"]:
        parts += [SafeText(), SafeText(shorten_ids(state["activity"]), style="yellow")]
    parts += [SafeText(), *_scale_out(state["scaleOut"], width)]
    return Group(*parts)


def _head(state: dict[str, Any], width: int) -> SafeText:
    from corral.cli.printing.safe_text import SafeText

    clock = state["now"].astimezone().strftime("%H:%M:%S")
    queue = f"  queue {state['queue']}" if state["queue"] else ""
    cluster = f"  cluster {state['cluster']}" if state["cluster"] else ""
    left = f"{state['group'] or 'service ' + state['service']}{queue}{cluster}"
    return SafeText.assemble((left, "bold"), " " * max(2, width - len(left) - len(clock)), (clock, "dim"))


def _levels(state: dict[str, Any], width: int) -> Table:
    """Draw the numbers of messages, workers and GPUs: their values now, and a graph of the last minutes."""
    size = max(12, min(GRAPH_MAX, width - 40))
    history, oldest = state["history"], state["oldestS"]
    busy = next((value for value in reversed(history["gpuUtilizationPercent"]) if value is not None), None)
    wanted = f" of {state['desired']}" if state["desired"] != state["workers"] else ""
    rows: list[tuple[str, str, list[float | None]]] = []
    if state["queue"] is not None:
        rows += [
            ("messages waiting", str(state["visible"]), history["visible"]),
            ("messages in flight", str(state["inFlight"]), history["inFlight"]),
            ("age of the oldest", "–" if oldest is None else f"{oldest:.0f} s", history["oldestS"]),
        ]
    rows += [("workers", f"{state['workers']}{wanted}", history["workers"]), ("GPUs", str(state["gpus"]), [])]
    if busy is not None:
        # The last published value is still listed after the last worker has ended.
        rows.append(("GPU utilization", f"{busy:.0f}%" if state["gpus"] else "–", history["gpuUtilizationPercent"]))
    table = plain_table()
    for title, columns, justify in (("", 18, "left"), ("NOW", 7, "right"), (f"LAST {WINDOW_S // 60} MIN", size, "left")):
        table.add_column(title, width=columns, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    table.add_column("MAX", width=6, justify="right", no_wrap=True)
    table.add_column("", ratio=1)
    for name, now, values in rows:
        if not values:
            table.add_row(name, now, "", "", "")
            continue
        most = max((value for value in values if value is not None), default=0.0)
        scaled = [None if value is None else 100 * value / (most or 1) for value in values]
        table.add_row(name, now, draw_graph(scaled, size), f"{most:.0f}", "")
    return table


def _policy(policy: dict[str, Any], state: dict[str, Any]) -> list[RenderableType]:
    """Describe a policy, its alarms, and its steps. The step that applies to the present number of messages is highlighted."""
    from corral.cli.printing.safe_text import SafeText

    head = SafeText.assemble(("policy ", "dim"), (policy["name"], "bold"))
    if policy["target"] is not None:
        head.append(f"  target {policy['target']:g}")
    elif policy["simple"] is not None:
        head.append(f"  {policy['adjustment']} {policy['simple']}")
    for alarm in policy["alarms"]:  # several alarms have a line each
        since = age(alarm["since"], state["now"])
        head.append("\n  alarm " if len(policy["alarms"]) > 1 else "  alarm ", "dim").append(_without_uuid(alarm["name"]))
        head.append(" in ", "dim").append(alarm["state"], f"bold {COLOURS.get(alarm['state'], '')}").append(f" for {since}", "dim")
    return [head, *([_steps(policy, state)] if policy["steps"] else [])]


def _without_uuid(text: str) -> str:
    """Shorten the names of the alarms of target tracking policies to AlarmHigh and AlarmLow."""
    return TRACKING_ALARM.sub(r"\1", text)


def _provider(state: dict[str, Any]) -> SafeText:
    from corral.cli.printing.safe_text import SafeText

    waiting = f"{count(state['waitingTasks'], 'task')} wait{'s' * (state['waitingTasks'] == 1)} for an instance"
    return SafeText.assemble(("capacity provider ", "dim"), (state["provider"], "bold"), "  ", waiting)


def _crashes(state: dict[str, Any]) -> str:
    found = state["crashes"]
    last = (
        f"the last {ago(found['at'], state['now'])}: {found['reason']}"
        if found["reason"]
        else f"the last {ago(found['at'], state['now'])}"
    )
    again = f"`corral logs {found['task'][:SHORT_ID]}` shows its output"
    return f"{count(found['count'], 'worker')} crashed in the last {found['windowS'] // 60} minutes, {last} ({again})"


def _steps(policy: dict[str, Any], state: dict[str, Any]) -> Table:
    alarm = next(iter(policy["alarms"]), None)
    threshold = alarm["threshold"] if alarm is not None else 0.0
    watched = alarm["watches"] if alarm is not None else []
    follows = state["visible"] is not None and any("NumberOfMessages" in (name or "") for name in watched)
    value = float(state["visible"]) if follows else None
    if value is not None and any("NotVisible" in (name or "") for name in watched):
        value += state["inFlight"]
    table = plain_table()
    labels, results = [], []
    for lower, upper, adjustment in policy["steps"]:
        low, high = (None if bound is None else threshold + bound for bound in (lower, upper))
        chosen = value is not None and (low is None or value >= low) and (high is None or value < high)
        result = f"{adjustment}" if policy["adjustment"] == "ExactCapacity" else f"{adjustment:+}"
        style = "bold reverse" if chosen else ""
        labels.append(styled(f" {_interval(low, high)} ", style))
        results.append(styled(f" {result}{'%' * (policy['adjustment'] == 'PercentChangeInCapacity')} ", style))
    table.add_column("", width=18, no_wrap=True)
    for label in labels:
        table.add_column("", width=max(len(label.plain), 9), justify="center", no_wrap=True)
    table.add_column("", ratio=1)
    table.show_header = False
    table.add_row("messages" if follows else next((name for name in watched if name), "metric"), *labels, "")
    table.add_row("workers", *results, "")
    return table


def _interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{low:g} and more" if low is not None else f"below {high:g}" if high is not None else "any"
    return f"{low:g} to {high:g}"


def _tasks(state: dict[str, Any]) -> Table:
    table = plain_table()
    users = owners.several(state["tasks"])
    user = (("USER", min(USER_MAX, max(4, *(len(owners.shown(each.get("owner"))) for each in state["tasks"])))),) if users else ()
    for title, size in (("WORKER", SHORT_ID), *user, ("INSTANCE", 19), ("STATE", 12), ("GPUS", 4), ("SINCE", 5)):
        table.add_column(title, width=size, no_wrap=True, overflow="ellipsis")
    table.add_column("HOLDS", no_wrap=True, overflow="ellipsis", ratio=1)
    for each in state["tasks"]:
        held = count(each["held"], "message") if "held" in each else ""
        shown = (owners.shown(each.get("owner")),) if users else ()
        cells = (each["id"][:SHORT_ID], *shown, each["instance"] or "", each["state"], str(len(each["gpuIds"])))
        since = age(each["started"] or each["created"], state["now"])
        table.add_row(*cells, since, f"{held}{', leaving' if each.get('leaving') else ''}")
    return table


def _scale_out(found: dict[str, Any] | None, width: int) -> list[RenderableType]:
    """Draw the time line of a scale-out. Each event has a line with the milliseconds since the first event, and a bar."""
    from corral.cli.printing.safe_text import SafeText

    if found is None:
        return [SafeText("No scale-out yet by an alarm or a capacity provider.", style="dim")]
    clock = found["at"].astimezone().strftime("%H:%M:%S")
    sizes = f"to {found['after']}" if found["before"] is None else f"{found['before']} → {found['after']}"
    title = SafeText.assemble(("last scale-out ", "dim"), (sizes, "bold"), (f" at {clock}", "dim"))
    total, size = max(1, found["steps"][-1]["ms"]), max(10, min(BAR_MAX, width - 60))
    table = plain_table()
    table.show_header = False
    table.add_column("", width=11, justify="right", no_wrap=True)
    table.add_column("", width=size, no_wrap=True)
    table.add_column("", ratio=1, overflow="fold")
    before = 0
    for each in found["steps"]:
        start, end = (round(ms * (size - 1) / total) for ms in (before, each["ms"]))
        bar = " " * start + "━" * (end - start) + "●"
        table.add_row(f"{each['ms']:,} ms", styled(bar, "cyan"), _without_uuid(each["text"]))
        before = each["ms"]
    return [title, table]
