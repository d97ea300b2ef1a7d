"""Draws executions of pipelines: one bar per step, the table of executions, and the result with its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from corral.cli.pipelines.state import Execution, StepCounts, StepState
from corral.cli.printing.live_screen import WIDE, one_line, plain_table, styled
from corral.cli.printing.output import count, format_duration, print_table
from corral.cli.printing.text_table import INDENT, cell_width, fold

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from corral.cli.pipelines.cost import ExecutionUsage, StepUsage
    from corral.cli.printing.safe_text import SafeText

COLOURS = {"SUCCEEDED": "green", "TOLERATED": "green", "FAILED": "red", "STOPPED": "red", "RUNNING": "cyan", "WAITING": "yellow"}
LABELS = {"TOLERATED": "SUCCEEDED", "NOT SUBMITTED": "NOT SENT"}
PARTS = (("done", "█", "green"), ("failed", "×", "red"), ("running", "▒", "cyan"), ("waiting", "░", "dim"))
NAME_COLUMNS, NAME_COLUMNS_WIDE = 16, 28
WIDE_COLUMNS = 83  # the columns of a wide screen that neither the name nor the reason of a step uses
ENDS_COLUMNS = 70  # a narrower screen has no column ENDS IN
HEAD_LINES = 3  # title, empty line, header


def frame(state: Execution, now_s: float, width: int, height: int | None = None, trouble: str = "") -> RenderableType:
    """Return the content of one screen. If there are more steps than lines, succeeded steps are left out first."""
    from rich.console import Group

    from corral.cli.printing.safe_text import SafeText

    parts: list[RenderableType] = [_title(state, now_s, width)]
    if trouble:
        parts.append(one_line(SafeText(trouble, style="bold red")))
    steps = _that_fit(state, width, None if height is None else height - HEAD_LINES - bool(trouble) - 2)
    parts += [SafeText(), _steps(steps, width, _room(state.steps, width))]
    parts += [
        one_line(SafeText(line, style="dim")) for step in steps for line in reason_lines(step, width, _room(state.steps, width))
    ]
    if len(steps) < len(state.steps):
        parts.append(SafeText(f"and {count(len(state.steps) - len(steps), 'step')} more", style="dim"))
    if state.ready and not state.ended:
        parts.append(one_line(SafeText(f"ready to submit: {', '.join(state.ready)}", style="yellow")))
    return Group(*parts)


def _title(state: Execution, now_s: float, width: int) -> SafeText:
    from corral.cli.printing.safe_text import SafeText

    end_s = state.stopped_s if state.ended and state.stopped_s else now_s
    text = SafeText.assemble((state.id, "bold"), "  ", (state.state, f"bold {COLOURS.get(state.state, '')}"))
    text.append(f"  {format_duration(max(0, round(end_s - state.created_s)))}")
    if state.ends_in_s is not None:
        text.append(f"  ends in about {format_duration(round(state.ends_in_s))}", "cyan")
    clock = datetime.fromtimestamp(now_s, UTC).astimezone().strftime("%H:%M:%S")
    text.append(" " * max(2, width - len(text.plain) - len(clock))).append(clock, "dim")
    return one_line(text)


def _that_fit(state: Execution, width: int, room: int | None) -> list[StepState]:
    if room is None:
        return list(state.steps)
    rank = {"RUNNING": 0, "WAITING": 1, "FAILED": 2, "NOT SUBMITTED": 3}
    chosen, used = set[str](), 0
    for step in sorted(state.steps, key=lambda each: rank.get(each.state, 4)):
        lines = 1 + len(reason_lines(step, width, _room(state.steps, width)))
        if used + lines <= max(1, room):
            chosen.add(step.name)
            used += lines
    return [step for step in state.steps if step.name in chosen]


def _steps(steps: Sequence[StepState], width: int, room: int) -> Table:
    """Draw one line per step. A wide screen has a column for reasons that are not longer than `room`."""
    is_wide = width >= WIDE
    table = plain_table()
    name = min(max((len(step.name) for step in steps), default=4), NAME_COLUMNS_WIDE if is_wide else NAME_COLUMNS)
    done = max((len(_done(step.counts)) for step in steps), default=4)
    bar = 30 if is_wide else max(8, width - max(4, name) - max(4, done) - (45 if width >= ENDS_COLUMNS else 36))
    columns = [("STEP", max(4, name), "left"), ("", bar, "left"), ("DONE", max(4, done), "right"), ("RUN", 5, "right"),
               ("FAIL", 5, "right"), ("WAIT", 5, "right"), ("STATE", 9, "left")]  # fmt: skip
    columns += [("ENDS IN", 8, "left")] if width >= ENDS_COLUMNS else []
    for title, size, justify in columns:
        table.add_column(title, width=size, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    table.add_column("REASON" if is_wide else "", no_wrap=True, overflow="ellipsis", ratio=1)
    for step in steps:
        counts = step.counts
        failed = styled(str(counts.failed), "bold red" if counts.failed else "dim")
        ends = "" if step.ends_in_s is None else format_duration(round(step.ends_in_s))
        state = styled(LABELS.get(step.state, step.state), COLOURS.get(step.state, ""))
        numbers = (_done(counts), str(counts.running), failed, str(counts.waiting))
        last = (ends, _reason_cell(step, room)) if width >= ENDS_COLUMNS else ("",)
        table.add_row(step.name, draw_bar(counts, bar), *numbers, state, *last)
    return table


def _done(counts: StepCounts) -> str:
    return f"{counts.done}/{counts.total}"


def reason_lines(step: StepState, width: int, room: int = 0) -> list[str]:
    """Return the lines below the table with the reason of a step, if the reason is longer than `room`."""
    if not step.reason or _reason_cell(step, room):
        return []
    text = f"{step.name}: {step.reason}"
    first, *_ = fold(text, width)
    rest = " ".join(text.split())[len(first) :]
    return [first, *(INDENT + line for line in (fold(rest, width - len(INDENT)) if rest else ()))]


def _reason_cell(step: StepState, room: int) -> str:
    return step.reason if cell_width(step.reason) <= room else ""


def _room(steps: Sequence[StepState], width: int) -> int:
    """Return how many columns the column REASON has. A narrow screen has no such column."""
    return width - min(max((len(step.name) for step in steps), default=4), NAME_COLUMNS_WIDE) - WIDE_COLUMNS if width >= WIDE else 0


def draw_bar(counts: StepCounts, size: int) -> SafeText:
    """Draw done, failed, running and waiting children as parts of one bar. A part that is not empty has at least one column."""
    from corral.cli.printing.safe_text import SafeText

    total = max(1, counts.total)
    columns = bar_columns([getattr(counts, name) for name, _, _ in PARTS], total, size)
    text = SafeText()
    for (_, sign, style), width in zip(PARTS, columns):
        text.append(sign * width, style)
    return text


def bar_columns(numbers: Sequence[int], total: int, size: int) -> list[int]:
    """Divide the columns of a bar. The results add up to `size`, and every number above zero gets at least one column."""
    exact = [number * size / total for number in numbers]
    shares = [max(int(value), 1 if number else 0) for value, number in zip(exact, numbers)]
    while sum(shares) < size and any(numbers):
        at = max(range(len(shares)), key=lambda at: (numbers[at] > 0, exact[at] - shares[at]))
        shares[at] += 1
    while sum(shares) > size:
        shares[max(range(len(shares)), key=lambda at: shares[at])] -= 1
    return shares


def step_line(step: StepState) -> str:
    """Describe a step in one line of text, for output that is not a terminal."""
    counts = step.counts
    numbers = [f"{number} {name}" for name, number in (("done", counts.done), ("running", counts.running)) if number]
    numbers += [f"{number} {name}" for name, number in (("failed", counts.failed), ("waiting", counts.waiting)) if number]
    ends = f", ends in about {format_duration(round(step.ends_in_s))}" if step.ends_in_s is not None else ""
    reason = f": {step.reason}" if step.reason else ""
    return f"{step.name}: {LABELS.get(step.state, step.state)} ({', '.join(numbers)}{ends}){reason}"


# Lists and results


def print_executions(rows: Sequence[Mapping[str, Any]]) -> None:
    shown = [
        {
            "RUN": row["id"],
            "STATE": row["state"],
            "STEPS": f"{row['stepsDone']}/{row['steps']}",
            "STARTED": datetime.fromtimestamp(row["startedS"], UTC).astimezone().strftime("%Y-%m-%d %H:%M"),
            "WALL": format_duration(round(row["wallS"])),
            "GPU HOURS": _number(row["gpuHours"]),
            "COST": dollars(row["cost"]),
        }
        for row in rows
    ]
    styles = {"STATE": lambda state: COLOURS.get(state, "")}
    print_table(shown, folded=("RUN", "STARTED"), right=("GPU HOURS", "COST"), styles=styles)


def result_table(state: Execution, usage: ExecutionUsage, earlier: Sequence[ExecutionUsage]) -> Table:
    """Draw wall time, GPU-hours and cost of each step and of the execution, and next to them the wall times of earlier ones."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("STEP", "JOBS", "WALL", "CPU HOURS", "GPU HOURS", "COST", *(f"{each.execution} WALL" for each in earlier)):
        table.add_column(title, overflow="fold", justify="left" if title == "STEP" else "right")
    for step in state.steps:
        own = usage.steps.get(step.name)
        others = [_wall(each.steps.get(step.name)) for each in earlier]
        if own is None:
            table.add_row(step.name, "0", "", "", "", "", *others)
        else:
            hours = (_number(own.vcpu_hours), _number(own.gpu_hours))
            table.add_row(step.name, str(own.jobs), _wall(own), *hours, dollars(own.cost), *others)
    wall = format_duration(round(usage.wall_s))
    hours = (_number(usage.vcpu_hours), _number(usage.gpu_hours))
    walls = [format_duration(round(each.wall_s)) for each in earlier]
    table.add_row("total", str(usage.jobs), wall, *hours, dollars(usage.cost), *walls, style="bold")
    if earlier and any(each.cost is not None for each in (usage, *earlier)):
        table.add_row(
            "cost of the run", "", "", "", "", dollars(usage.cost), *(dollars(each.cost) for each in earlier), style="dim"
        )
    return table


def _wall(usage: StepUsage | None) -> str:
    return "" if usage is None else format_duration(round(usage.wall_s))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.{2 if value >= 1 or not value else 4}f}"


def dollars(value: float | None) -> str:
    """Format a price. Small prices have more digits, because a short execution costs less than a cent."""
    return "no price" if value is None else f"${value:,.{2 if value >= 1 else 4 if value >= 0.01 or not value else 6}f}"
