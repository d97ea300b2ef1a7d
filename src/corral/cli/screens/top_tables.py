"""The tables of `corral top`: hosts, GPUs, instances and tasks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from corral.cli.client import owners
from corral.cli.printing.live_screen import WIDE, draw_graph, one_line, plain_table, styled
from corral.cli.printing.output import SHORT_ID, ago, count, parsed_date, shorten_ids, start
from corral.cli.runs.tasks import SHARED_MARK, needs, short_reason, spans, title
from corral.cli.screens.status import gpu_indexes, holders, idle_lines, instance_gpus, reserved_for, tasks_line, unavailable_reasons

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from corral.cli.printing.safe_text import SafeText

PARTS = " ▏▎▍▌▋▊▉█"
VERY_WIDE = 160
NARROW = 80  # a screen with fewer columns has fewer columns in its tables
MIB_PER_GIB = 1024
PAUSED = ("PAUSING", "PAUSED", "RESUMING")
IDLE_LINES = 5  # the most lines about GPUs that do nothing
MARK = ""  # the heading of the column that marks the selected task
WAITING_SHARE = 3  # if not all tasks fit on the screen, at least a third of the lines are for waiting tasks


def frame(
    page: dict[str, Any], date: str | None, width: int, height: int | None, trouble: str = "", selected: str | None = None
) -> RenderableType:
    """Return the content of one screen. If `height` is None, the number of lines is not limited. `selected` is a task id."""
    from rich.console import Group

    from corral.cli.printing.safe_text import SafeText

    now = parsed_date(date)
    parts: list[RenderableType] = [_head(page, now, width)]
    if trouble:
        parts.append(one_line(SafeText(trouble, style="bold red")))
    idle = idle_lines(page, now)[:IDLE_LINES]
    texts = [SafeText(line, style="yellow") for line in idle]
    parts += texts if height is None else [one_line(text) for text in texts]
    used = 1 + bool(trouble) + len(idle)
    for host in page["hosts"]:
        parts += [SafeText(), _host(host, width)]
        used += 2
        if host["gpus"]:
            parts.append(_gpus(host["gpus"], width, folds=height is None))
            used += 1 + len(host["gpus"])
    if not page["hosts"]:
        parts += [SafeText(), SafeText("No host is connected.")]
        used += 2
    if page.get("instances"):
        room = None if height is None else max(3, (height - used) // 2 - 2)  # the other half is for tasks
        rows = _instances(page, now, width, room)
        parts += [SafeText(), rows]
        used += 2 + rows.row_count
    if page["running"] or any("instance" not in claim for claim in page["waiting"]):
        room = None if height is None else max(0, height - used - 2)
        parts += [SafeText(), _tasks(page, now, width, room, selected)]
    return Group(*parts)


def _head(page: dict[str, Any], now: datetime | None, width: int) -> SafeText:
    from corral.cli.printing.safe_text import SafeText

    clock = now.astimezone().strftime("%H:%M:%S") if now else ""
    left = f"Corral {page['version']}  {tasks_line(page['tasks'], page.get('paused') or ())}"
    gap = width - len(left) - len(clock)
    if gap < 2:  # the clock does not fit
        return one_line(SafeText(left, style="bold"))
    return one_line(SafeText.assemble((left, "bold"), " " * gap, (clock, "dim")))


def _host(host: dict[str, Any], width: int) -> SafeText:
    from corral.cli.printing.safe_text import SafeText

    cpu, memory = host["cpuUnits"], host["memoryMiB"]
    size = 10 if width >= WIDE else 5
    text = SafeText.assemble((host["name"], "bold"), f"  CPU {_cores(cpu['total'] - cpu['free'])}/{_cores(cpu['total'])} cores ")
    text.append(_bar(cpu["total"] - cpu["free"], cpu["total"], size), "cyan")
    text.append(f"  memory {_gib(memory['total'] - memory['free'])}/{_gib(memory['total'])} GiB ")
    text.append(_bar(memory["total"] - memory["free"], memory["total"], size), "cyan")
    text.append("  reserved", "dim")
    if not host["connected"]:
        text.append("  NOT CONNECTED", "bold red")
    return one_line(text)


def _gpus(gpus: list[dict[str, Any]], width: int, *, folds: bool) -> Table:
    bar, model = (12, 26) if width >= WIDE else (0, 14)
    graph = max(12, min(60, width - 100))
    table = plain_table()
    columns: tuple[tuple[str, int, str], ...] = (
        ("GPU", 3, "right"), ("MODEL", model, "left"), ("UTIL", 4, "right"), ("LAST 2 MIN", graph, "left"),
        ("MEMORY GiB", 11, "right"), ("", bar, "left"), ("W", 4, "right"), ("°C", 3, "right"),
    )  # fmt: skip
    kept = ("GPU", "MODEL", "UTIL", "MEMORY GiB") if width < NARROW else tuple(name for name, *_ in columns)
    columns = tuple(column for column in columns if column[0] in kept and column[1])
    for name, size, justify in columns:
        _add_column(table, name, width=size, justify=justify, folds=folds and name == "MODEL")
    _add_column(table, "HELD BY", ratio=1, folds=folds)
    for gpu in gpus:
        busy, used = gpu["utilizationPercent"], gpu["memoryUsedMiB"]
        cells: dict[str, RenderableType] = {
            "GPU": str(gpu["index"]),
            "MODEL": _model(gpu),
            "UTIL": "?" if busy is None else f"{busy:.0f}%",
            "LAST 2 MIN": draw_graph(gpu["history"]["utilizationPercent"], graph),
            "MEMORY GiB": f"{'?' if used is None else _gib(used)}/{_gib(gpu['memoryMiB'])}",
            "": styled(_bar(used or 0, gpu["memoryMiB"], bar), "cyan"),
            "W": _number(gpu["powerW"]),
            "°C": _number(gpu["temperatureC"]),
        }
        table.add_row(*(cells[name] for name, *_ in columns), _held_by(gpu, with_ids=width >= WIDE))
    return table


def _model(gpu: dict[str, Any]) -> str:
    name = gpu["model"].removeprefix("NVIDIA ")
    return f"sim {name}" if gpu["simulated"] else name


def _held_by(gpu: dict[str, Any], *, with_ids: bool) -> SafeText:
    """Return the tasks that have a GPU, or why nothing can use it, or "free".

    A narrow screen shows the names of tasks without their ids, because the list of tasks has the ids.
    """
    from corral.cli.printing.safe_text import SafeText

    why = ", ".join(unavailable_reasons(gpu))
    if gpu["task"]:
        text = SafeText(holders(gpu, with_ids=with_ids), style="bold")
        text = text.append(f", {why}", "yellow") if why else text
    elif why or (reserved := reserved_for(gpu, with_ids=with_ids)):
        text = styled(why or reserved, "yellow")
    else:
        text = styled("free", "green")
    return text.append(f" on {gpu['instance']}", "not bold dim") if gpu.get("instance") else text


def _instances(page: dict[str, Any], now: datetime | None, width: int, room: int | None) -> Table:
    """List the instances, waiting instances last, in at most `room` rows."""
    indexes = gpu_indexes(page)
    reasons = {claim["instance"]: short_reason(shorten_ids(claim["reason"])) for claim in page["waiting"] if "instance" in claim}
    rows = page["instances"]
    shown = rows if room is None or len(rows) <= room else rows[: room - 1]
    more = sum(page["instanceCounts"].values()) - len(shown)
    table = plain_table()
    titles = ("INSTANCE", "TYPE", "STATE", "GROUP", "CLUSTER", "HOST", "GPUS", "TASKS", "SINCE")
    sizes = (19, 13, 13, 17, 17, 12, 8, 5, 8) if width >= WIDE else (19, 11, 7, 8, 7, 7, 7, 5, 8)
    if width >= VERY_WIDE:
        sizes = (19, 16, 13, 24, 24, 16, 12, 5, 8)
    columns = {name: size for name, size in zip(titles, sizes) if width >= NARROW or name in ("INSTANCE", "TYPE", "STATE", "GPUS")}
    if not any(each.get("host") for each in shown):
        columns.pop("HOST", None)
    for heading, size in columns.items():
        _add_column(table, heading, width=size, folds=room is None)
    _add_column(table, "REASON" if width >= WIDE else "", ratio=1, folds=room is None)
    for each in shown:
        since = ago(datetime.fromtimestamp(each["sinceS"], UTC), now)
        state = styled(each["state"], "yellow" if each["state"] == "pending" else "")
        places = (each["group"] or "", each["cluster"] or "", each.get("host") or "")
        others = (*places, instance_gpus(each, indexes), str(each["tasks"]), since)
        cells = dict(zip(titles, (each["id"], each["type"], state, *others)))
        table.add_row(*(cells[name] for name in columns), reasons.get(each["id"], "") if width >= WIDE else "")
    if more > 0:
        table.add_row(f"and {more} more")
    return table


def task_rows(page: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the oldest running tasks, then the waiting tasks and lines, the next to start first.

    It has no member `task`.
    """
    return [*page["running"], *(task for task in page["waiting"] if "instance" not in task)]


def _tasks(page: dict[str, Any], now: datetime | None, width: int, room: int | None, selected: str | None) -> Table:
    """List tasks and lines. Omit the rows that do not fit on the screen. If a task is selected, its row is not omitted."""
    indexes, is_wide, rows = gpu_indexes(page), width >= WIDE, task_rows(page)
    running, waiting = _fitting(page["running"], rows[len(page["running"]) :], room, sum(_unfinished(page).values()))
    shown = [*running, *waiting]
    at = next((number for number, task in enumerate(rows) if task.get("task") == selected), None) if selected else None
    if at is not None and rows[at] not in shown:
        shown = rows[max(0, at + 1 - len(shown)) : at + 1]
    more = sum(_unfinished(page).values()) - sum("task" in task for task in shown)
    table = plain_table()
    sizes = {"ID": SHORT_ID, "TASK": max(16, width // 5), "STATE": 8, "LINE": 4, "GPUS": 5, "SINCE": 8}
    has_starts = any(task.get("startsAtS") for task in waiting)
    sizes |= {"START": 7} if has_starts else {}  # `in 119m`
    sizes |= {"NEEDS": 18} if is_wide else {}
    if owners.several([*running, *waiting]) and width >= NARROW:
        sizes |= {"USER": max(8, width // 12)}
    if any(task.get("host") for task in running):
        sizes |= {"HOST": max(8, width // 10)}
    if width < NARROW:
        sizes = {name: size for name, size in sizes.items() if name in ("ID", "TASK", "STATE")}
    sizes = {MARK: 1, **sizes} if at is not None else sizes
    for heading, size in sizes.items():
        justify = "right" if heading == "LINE" else "left"
        _add_column(table, heading, width=size, justify=justify, folds=room is None and heading == "TASK")
    _add_column(table, "REASON", ratio=1, folds=room is None)
    for task in shown:
        waits = "state" not in task
        since, reason = ago(datetime.fromtimestamp(task["sinceS"], UTC), now), short_reason(shorten_ids(task.get("reason") or ""))
        if "task" in task:
            what = title(task["taskName"], task["arrayIndex"])
        else:
            what = f"{count(task['jobs'], 'job')} in {task['jobQueue']}"
        state = styled("WAITING" if waits else task["state"], "yellow" if waits or task["state"] in PAUSED else "")
        place, gpus = str(task.get("place") or ""), _gpu_numbers(task, indexes)
        is_selected = at is not None and task is rows[at]
        cells: dict[str, Any] = {
            MARK: ">" if is_selected else "",
            "ID": task.get("task", "")[:SHORT_ID],
            "TASK": what,
            "STATE": state,
            "LINE": place,
            "GPUS": gpus,
            "SINCE": since,
            "START": start(task.get("startsAtS"), now),
            "NEEDS": needs(task["needs"]) if waits else "",
            "HOST": task.get("host") or "",
            "USER": owners.shown(task.get("owner")),
        }
        table.add_row(*(cells[name] for name in sizes), reason, style="reverse" if is_selected else None)
    if more > 0:
        table.add_row(*(f"and {more} more" if name == "TASK" else "" for name in sizes), "see `corral ps`")
    return table


def _unfinished(page: dict[str, Any]) -> dict[str, int]:
    return {state: number for state, number in page["tasks"].items() if state != "STOPPED"}


def _fitting(running: list[Any], waiting: list[Any], room: int | None, total: int) -> tuple[list[Any], list[Any]]:
    """Return the running and the waiting tasks that fit into `room` rows. `total` is the number of unfinished tasks.

    If not all fit, a third of the rows is for waiting tasks, or more if there are few running tasks.
    """
    if room is None or len(running) + len(waiting) + (total > len(running) + len(waiting)) <= room:
        return running, waiting
    room = max(0, room - 1)  # the last row says how many tasks are not shown
    for_waiting = min(len(waiting), max(room - len(running), room // WAITING_SHARE))
    return running[: room - for_waiting], waiting[:for_waiting]


def _gpu_numbers(task: dict[str, Any], indexes: dict[str, int]) -> str:
    gpu_ids = task.get("gpuIds", ())
    shared = SHARED_MARK if task.get("gpuMemoryMiB") else ""
    if all(gpu_id in indexes for gpu_id in gpu_ids):
        return spans(indexes[gpu_id] for gpu_id in gpu_ids) + shared
    return ",".join(str(indexes.get(gpu_id, gpu_id[4:8])) for gpu_id in gpu_ids) + shared


def _add_column(table: Table, title: str, *, folds: bool, **options: Any) -> None:
    """Add a column. Its long cells are folded, or else cut, because the live screen has one line for each row."""
    table.add_column(title, no_wrap=not folds, overflow="fold" if folds else "ellipsis", **options)


def _bar(used: float, total: float, size: int) -> str:
    eighths = round(8 * size * min(1.0, used / total)) if total else 0
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (PARTS[part] if part else "")).ljust(size, "░")


def _gib(mib: float) -> str:
    return f"{mib / MIB_PER_GIB:.1f}"


def _cores(units: int) -> str:
    return f"{units / 1024:.1f}".removesuffix(".0")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
