"""The output of commands in a real terminal with 80 to 200 columns."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import BUSY, UNTIL_TOLD, Cli
from corral.cli.screens.top import KEYS, LOG_KEYS, parse_keys
from eventually import eventually
from terminal import PROMPT, Terminal

WIDTHS = pytest.mark.parametrize("columns", [80, 160])
TABLE_WIDTHS = pytest.mark.parametrize("columns", [80, 120, 200])
WIDE = 120  # from this width on, tables have a column for what a task needs
Open = Callable[[int], Terminal]


@pytest.fixture
def terminal(cli: Cli, tmp_path: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def make(columns: int) -> Terminal:
        opened.append(Terminal(tmp_path, {**cli.environment, "LC_ALL": "C.UTF-8"}, columns))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def work() -> str:
    """The command of the task that holds a GPU."""
    return "exec sleep 600"


@pytest.fixture
def holder(cli: Cli, work: str) -> str:
    return cli.start_task("--gpus", "1", "--", "sh", "-c", f"echo on; {work}", family="burner")


@pytest.fixture
def waiter(cli: Cli, holder: str) -> str:
    return cli("run", "-d", "--gpus", "2", "--name", "waiter-with-quite-a-long-name", "--", "true").stdout.strip()


def column(lines: list[str], title: str) -> int:
    """Where a column begins, by its header."""
    [at] = {line.index(title) for line in lines if title in line}
    return at


@TABLE_WIDTHS
@pytest.mark.parametrize("work", [BUSY], ids=["busy"])
def test_top(cli: Cli, terminal: Open, holder: str, waiter: str, columns: int) -> None:
    eventually(lambda: (cli.json("status")["hosts"][0]["gpus"][0]["utilizationPercent"] or 0) > 5)
    screen = terminal(columns)
    before = screen.settings()
    screen.type("corral top")
    lines = screen.until("burner holds 1 of 2 GPUs", KEYS)
    assert screen.is_alternate()
    assert lines[0].startswith("Corral ") and "1 running, 1 waiting" in lines[0]
    assert re.search(r"\d\d:\d\d:\d\d$", lines[0]) and len(lines[0]) == columns  # the clock is at the right edge
    assert lines[1] == "" and "CPU 0/" in lines[2] and "GiB" in lines[2]
    head, first, second = lines[3:6]
    assert head.split() == ["GPU", "MODEL", "UTIL", "LAST", "2", "MIN", "MEMORY", "GiB", "W", "°C", "HELD", "BY"]
    assert first.startswith("  0 sim H100 80GB") and second.startswith("  1 sim H100 80GB")
    at = column(lines, "HELD BY")
    assert first[at:].startswith(holder[:8] if columns >= WIDE else "burner")
    assert second[at:].startswith("reserved for ")  # the waiting task needs two GPUs, and one is free
    assert f"reserved for {waiter[:8]}" in second or columns == 80
    assert re.search(r" \d+% [▁▂▃▄▅▆▇█·]{12,}", first) and "/79.6" in first
    tasks = lines[7:]
    needs = ["NEEDS"] if columns >= WIDE else []
    assert tasks[0].split() == ["ID", "TASK", "STATE", "LINE", "GPUS", "SINCE", *needs, "REASON"]
    assert tasks[1].startswith(f"{holder[:8]} burner ") and "RUNNING" in tasks[1]
    assert tasks[2].startswith(f"{waiter[:8]} waiter-with-") and tasks[2].index("WAITING") == column(tasks, "STATE")
    assert tasks[2][column(tasks, "LINE") : column(tasks, "GPUS")].strip() == "1"
    assert tasks[2][column(tasks, "GPUS") : column(tasks, "SINCE")].strip() == ""
    assert tasks[2].endswith("burner holds 1 of 2 GPUs")
    assert not needs or tasks[2][column(tasks, "NEEDS") :].startswith("2 GPUs  ")
    assert columns < 200 or "waiter-with-quite-a-long-name" in tasks[2]
    screen.resize(100, 20)
    screen.until("HELD BY")
    screen.press("q")
    screen.until_prompt()
    assert screen.settings() == before and not screen.is_alternate() and screen.cursor_is_shown()


def test_top_fills_the_window(cli: Cli, terminal: Open, holder: str, waiter: str) -> None:
    ecs = cli.client("ecs")
    definition = ecs.describe_tasks(tasks=[holder])["tasks"][0]["taskDefinitionArn"]
    for _ in range(5):
        ecs.run_task(taskDefinition=definition, count=10)
    screen = terminal(100)
    screen.type("corral top")
    lines = screen.until("more", KEYS)
    assert len(lines) == screen.rows
    shown = [line for line in lines if "WAITING" in line]
    assert lines[-2].split() == ["and", str(51 - len(shown)), "more", "see", "`corral", "ps`"]
    assert lines[-1] == "↑↓ select  l log  s stop  h help  q quit"
    places = [line[column(lines, "LINE") : column(lines, "GPUS")].strip() for line in shown]
    assert places == [str(at + 1) for at in range(len(shown))]
    screen.resize(100, 62)
    eventually(lambda: sum("WAITING" in line for line in screen.screen()) == 51, "a row for each task")
    screen.press("q")
    screen.until_prompt()


@pytest.mark.parametrize("columns", [60, 80])
def test_keys_of_top(cli: Cli, terminal: Open, holder: str, waiter: str, columns: int) -> None:
    screen = terminal(columns)
    before = screen.settings()
    screen.type("corral top")
    lines = screen.until("WAITING", KEYS)
    assert max(map(len, lines)) <= columns and "burner" in lines[4] and lines[-1].startswith("↑↓ select  l log")
    screen.press("s")
    screen.until("select a task first")
    screen.press("Down")
    screen.until(f"> {holder[:8]} burner")
    screen.press("j")
    lines = screen.until(f"> {waiter[:8]} waiter-with-", KEYS)
    assert f"  {holder[:8]} burner" in "\n".join(lines)
    screen.press("l")  # the log of a task that waits says why it waits
    screen.until(f"waiter-with-quite-a-long-name ({waiter[:8]})  WAITING: burner")
    screen.press("q")
    screen.until(f"> {waiter[:8]}")
    screen.press("Up", "Enter")
    lines = screen.until("\non\n", LOG_KEYS)
    assert lines[0] == f"burner ({holder[:8]})  RUNNING" and lines[-1] == "↑↓ scroll  G end  q back"
    screen.press("q", "?")
    assert max(map(len, screen.until("stop the selected task; y confirms it"))) <= columns
    screen.press("q")  # returns from the help, and does not quit
    screen.until(f"> {holder[:8]}")
    screen.press("Down", "x")
    screen.until(f"({waiter[:8]})? y/n")
    screen.press("n")
    screen.until_gone("y/n")
    assert cli.task(waiter)["desiredStatus"] == "RUNNING"
    screen.press("x", "y")
    screen.until("is stopping")
    screen.until(f"> {holder[:8]}")  # the selection moves to a task that is left
    assert cli.task(waiter)["desiredStatus"] == "STOPPED"
    screen.press("l")
    screen.until("\non\n")
    screen.press("C-c")
    screen.until_prompt()
    assert screen.settings() == before and not screen.is_alternate() and screen.cursor_is_shown()
    screen.type("corral top; echo ended with $?")
    screen.until_gone("> ")
    screen.until("burner")
    pane = screen._do("display-message", "-p", "#{pane_pid}").strip()
    [top] = subprocess.check_output(["pgrep", "-P", pane], text=True).split()
    os.kill(int(top), signal.SIGTERM)
    screen.until("ended with 143")
    assert screen.settings() == before and not screen.is_alternate()


def test_keys_are_parsed() -> None:
    assert parse_keys("\x1b[A\x1bOBjk") == ["up", "down", "down", "up"]
    assert parse_keys("\x1b[5~\x1b[6~\x1b[1~\x1bOF\x1b[15~\x1b[1;5C") == ["page up", "page down", "home", "end"]
    assert parse_keys("\x1b") == parse_keys("q") == ["quit"] and parse_keys("A\x1a") == ["A", "\x1a"] and parse_keys("") == []


def test_top_goes_on_when_the_server_does_not(own: Cli, tmp_path: Path) -> None:
    own("up", "-d", "--port", "0", "--gpus", "sim:1")
    screen = Terminal(tmp_path, {**own.environment, "LC_ALL": "C.UTF-8"}, 80)
    try:
        screen.type("corral top")
        screen.until("HELD BY")
        own("down")
        screen.until("cannot connect to")
        screen.press("C-c")
        screen.until_prompt()
        assert not screen.is_alternate()
        assert "Traceback" not in "\n".join(screen.screen())
    finally:
        screen.close()


@TABLE_WIDTHS
def test_ps(terminal: Open, holder: str, waiter: str, columns: int) -> None:
    screen = terminal(columns)
    screen.type("corral ps")
    screen.until("ID  ")
    lines = screen.until_prompt()[1:-1]
    needs = ["NEEDS"] if columns >= WIDE else []
    assert lines[0].split() == ["ID", "TASK", "STATE", "LINE", "GPUS", "SINCE", *needs, "REASON"]
    assert lines[1].startswith(f"{holder[:8]}  burner ") and lines[1].index("RUNNING") == column(lines, "STATE")
    assert lines[1].rstrip()[column(lines, "GPUS")] == "0"
    assert lines[2].startswith(f"{waiter[:8]}  waiter-with-") and lines[2].index("WAITING") == column(lines, "STATE")
    assert lines[2][column(lines, "LINE")] == "1"
    assert lines[2].endswith("burner holds 1 of 2 GPUs") and (not needs or "  2 GPUs  " in lines[2])
    name = "".join(line[column(lines, "TASK") : column(lines, "STATE")].strip() for line in lines[2:])
    assert "waiter-with-quite-a-long-name" in name  # folded, and not cut


def test_a_narrow_screen_keeps_the_holders_and_no_color_has_no_styles(terminal: Open, holder: str, waiter: str) -> None:
    screen = terminal(60)
    screen.type("clear; corral status")
    screen.until("WAITING")
    lines = screen.until_prompt()
    assert any(line.split()[-2:] == [holder[:8], "burner"] for line in lines), lines
    assert "burner holds 1 of 2 GPUs" in " ".join(" ".join(lines).split()).replace("- ", "-")
    assert "\x1b[1m" in screen._do("capture-pane", "-p", "-e")
    screen.type("clear; export NO_COLOR=1; corral status; corral top --once; echo END")
    screen.until("\nEND")
    screen.until_prompt()
    assert not re.search(r"\x1b\[[0-9;]*m", screen._do("capture-pane", "-p", "-e"))


@WIDTHS
def test_run_waits_and_then_streams(cli: Cli, terminal: Open, columns: int) -> None:
    holder = cli.start_task("--gpus", "2", "--", "sh", "-c", UNTIL_TOLD)
    screen = terminal(columns)
    before = screen.settings()
    screen.type("corral run --gpus 1 -- sh -c 'for i in 1 2 3; do echo step $i; done; exit 3'")
    lines = screen.until(f"held by task {holder[:8]}")
    waiting = " ".join(" ".join(lines).partition("waits ")[2].split())
    assert re.match(r"\d+s: begun holds 2 of 2 GPUs; needs 1 GPU; first in line; held by task", waiting)

    def counts_on() -> bool:
        """It counts, and stays where it is."""
        seconds = re.findall(r"waits (\d+)s", "\n".join(screen.screen()))
        return len(seconds) == 1 and int(seconds[0]) > int(waiting.partition("s")[0])

    eventually(counts_on)
    cli("stop", holder)
    screen.until("step 3")
    lines = screen.until_prompt()
    assert not any("waits" in line for line in lines)  # that line has gone
    at = next(at for at, line in enumerate(lines) if "starts on GPU-" in line)
    assert lines[at].startswith("corral: task ")
    assert lines[at + 1 : at + 5] == ["step 1", "step 2", "step 3", PROMPT.strip()]
    screen.type("echo code $?")
    screen.until("code 3")
    assert screen.settings() == before and screen.cursor_is_shown()


@WIDTHS
def test_a_shell_on_a_gpu(cli: Cli, terminal: Open, columns: int) -> None:
    screen = terminal(columns)
    before = screen.settings()
    screen.type("corral run -i --gpus 1 --env 'PS1=inside> ' -- bash --norc --noprofile")
    screen.until("\ninside>")
    screen.type("stty size; echo has ${CUDA_VISIBLE_DEVICES%%-*}; sleep 600")
    lines = screen.until("has GPU")
    assert f"30 {columns}" in lines
    screen.press("C-c")
    screen.type("echo code $?")
    screen.until("code 130")
    screen.resize(100, 24)
    screen.type("while ! stty size | grep '24 100'; do sleep 0.05; done")
    screen.until("24 100\ninside>")
    screen.type("exit 5")
    screen.until_prompt()
    screen.type("echo it ended with $?")
    screen.until("it ended with 5")
    assert screen.settings() == before


@WIDTHS
def test_a_shell_in_a_running_task(terminal: Open, holder: str, columns: int) -> None:
    screen = terminal(columns)
    before = screen.settings()
    screen.type(f"corral exec {holder[:8]} -- env 'PS1=inside> ' bash --norc --noprofile")
    screen.until("\ninside>")
    screen.type("stty size; echo has ${CUDA_VISIBLE_DEVICES%%-*}; sleep 600")
    lines = screen.until("has GPU")
    assert f"30 {columns}" in lines
    screen.press("C-c")
    screen.type("echo code $?")
    screen.until("code 130")
    screen.resize(100, 24)
    screen.type("while ! stty size | grep '24 100'; do sleep 0.05; done")
    screen.until("24 100\ninside>")
    screen.type("clear; seq 3000")
    screen.until("\n2999\n3000\ninside>")
    screen.type("exit 5")
    screen.until_prompt()
    screen.type("echo it ended with $?")
    screen.until("it ended with 5")
    assert screen.settings() == before


def test_a_shell_in_a_task_that_is_stopped(cli: Cli, terminal: Open, holder: str) -> None:
    screen = terminal(80)
    before = screen.settings()
    screen.type(f"corral exec {holder[:8]} -- env 'PS1=inside> ' bash --norc --noprofile")
    screen.until("\ninside>")
    cli("stop", holder)
    screen.until("the container has stopped")
    screen.until_prompt()
    assert screen.settings() == before


def test_a_python_prompt_on_a_gpu(terminal: Open) -> None:
    screen = terminal(80)
    screen.type(f"corral run -i -- {sys.executable} -q")
    screen.until(">>>")
    screen.type("import os; os.get_terminal_size().columns")
    screen.until("\n80\n")
    screen.type(r"""exec("print('loop' 'ing')\nwhile True: pass")""")
    screen.until("\nlooping")  # Python can miss a signal that arrives just before it waits for input
    screen.press("C-c")
    screen.until("KeyboardInterrupt")
    screen.type("6 * 7")
    screen.until("\n42\n")
    screen.press("C-d")
    screen.until_prompt()


def test_bash_completes_on_tab(cli: Cli, terminal: Open, holder: str) -> None:
    screen = terminal(80)
    screen.type('eval "$(corral completion bash)"')
    screen.until_prompt()
    screen._do("send-keys", "-l", f"corral stop {holder[:4]}")
    screen.press("Tab")
    screen.until(f"corral stop {holder}")


def test_a_task_cannot_control_the_terminal(terminal: Open) -> None:
    """Colours pass. Titles, the clipboard, cursor movements and the direction of writing are shown escaped."""
    screen = terminal(160)
    title = screen._do("display-message", "-p", "#{pane_title}")
    attack = r"\033[31mred\033[0m \033]0;owned\007\033]52;c;aGk=\007 \033[2J\033[H \302\2332J \342\200\256 50%% end\r\n"
    expected = r"red \x1b]0;owned\x07\x1b]52;c;aGk=\x07 \x1b[2J\x1b[H \x9b2J \u202e 50% end"
    screen.type(f"corral run --name attack -- printf '{attack}'")
    screen.until("end\n")
    screen.until_prompt()
    screen.type("corral logs $(corral ps --all --json | grep -o 'task/default/[0-9a-f]*' | tail -1 | cut -d/ -f3) && echo printed")
    screen.until("\nprinted")
    lines = screen.screen()
    assert lines.count(expected) == 2, lines
    assert "\x1b[31mred" in screen._do("capture-pane", "-p", "-e")
    assert screen._do("display-message", "-p", "#{pane_title}") == title
    assert not screen._do("list-buffers")


def test_a_progress_bar_stays_on_one_line(terminal: Open, cli: Cli) -> None:
    """Also a bar that is wider than the screen. The finished bar remains, and so does each other line."""
    screen = terminal(60)
    (cli.home / "bar.sh").write_text(
        f"draw() {{ printf '\\r%s%% {'=' * 70}' $1; }}\n"
        "echo begin; for percent in 10 60; do draw $percent; while [ ! -e bar$percent ]; do sleep 0.05; done; done\n"
        "for percent in 97 98 99 100; do draw $percent; done; printf '\\nend\\n'\n"
    )
    screen.type(f"cd {cli.home}; clear; corral run --name bar -- sh bar.sh")
    screen.until("10%")
    (cli.home / "bar10").touch()
    assert "10%" not in "".join(screen.until("60%"))
    (cli.home / "bar60").touch()
    for command in ("corral logs -f bar", "true"):
        lines = screen.until("\nend")
        assert lines[lines.index("begin") :][:4] == ["begin", "100% " + "=" * 55, "=" * 15, "end"], lines
        screen.until_prompt()
        screen.type(f"clear; {command}")


@WIDTHS
def test_nothing_is_wider_than_the_screen(cli: Cli, holder: str, waiter: str, columns: int) -> None:
    for verb in (["status"], ["ps", "--all"], ["top", "--once"], ["doctor"]):
        text = cli(*verb, env={"COLUMNS": str(columns)}).stdout
        widest = max(text.splitlines(), key=len)
        assert len(widest) <= columns or verb == ["status"], widest
