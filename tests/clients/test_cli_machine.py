"""`corral top`, `doctor` and `completion`, and the page that top reads."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from pathlib import Path

import pytest

import forkserver
from command import BUSY, UNTIL_TOLD, Cli
from corral.model.gpu_metrics import GpuSample
from corral.services.corral.status import HISTORY_POINTS, HISTORY_STEP_S, _history
from corral.version import full_version
from eventually import eventually


def test_top_shows_who_holds_what_and_how_busy_it_is(cli: Cli) -> None:
    holder = cli("run", "-d", "--gpus", "1", "--name", "burner", "--", "sh", "-c", BUSY).stdout.strip()
    waiter = cli("run", "-d", "--gpus", "2", "--name", "patient", "--", "true").stdout.strip()
    eventually(lambda: (cli.json("status")["hosts"][0]["gpus"][0]["utilizationPercent"] or 0) > 5)
    page = cli.json("top")
    first, second = page["hosts"][0]["gpus"]
    assert (first["task"], first["taskDefinition"], second["task"]) == (holder, "burner:1", None)
    assert (
        len(first["history"]["utilizationPercent"]) == HISTORY_POINTS
        and max(filter(None, first["history"]["utilizationPercent"])) > 5
    )
    assert [(task["task"], task["state"], task["gpuIds"]) for task in page["running"]] == [(holder, "RUNNING", [first["id"]])]
    assert [(task["task"], task["taskDefinition"]) for task in page["waiting"]] == [(waiter, "patient:1")]
    for columns in (80, 160):
        lines = cli("top", "--once", env={"COLUMNS": str(columns)}).stdout.splitlines()
        assert max(map(len, lines)) <= columns
        [row] = [line for line in lines if line.startswith("  0 sim H100")]
        assert ("burner" if columns == 80 else f"{holder[:8]} burner") in row and "%" in row and "/79.6" in row
        assert any(line.startswith(f"{waiter[:8]} patient ") and "2 GPUs" in line for line in lines)
    assert "history" not in cli("status", "--json").stdout  # which is for reading


def test_history_is_evenly_spaced() -> None:
    def sample(percent: float) -> GpuSample:
        return GpuSample("GPU-0", percent, int(percent))

    now_s = 1000.0
    assert _history([], now_s)["utilizationPercent"] == [None] * HISTORY_POINTS
    told = _history([(now_s - 3.5, sample(10)), (now_s - 2.5, sample(20)), (now_s - 0.5, sample(30))], now_s)
    assert told["utilizationPercent"][-4:] == [None, None, 20, 30]
    assert told["memoryUsedMiB"][-2:] == [20, 30]
    stale = _history([(now_s - 100.0, sample(50))], now_s)["utilizationPercent"]
    assert stale[-1] is None and 50 in stale
    assert HISTORY_POINTS * HISTORY_STEP_S == 120


def test_doctor_finds_nothing_wrong_where_nothing_is(cli: Cli) -> None:
    findings = cli.json("doctor")
    assert all(finding["level"] in ("ok", "warning") for finding in findings)
    by_check = {}
    for finding in findings:
        by_check.setdefault(finding["check"], []).append(finding)
    assert set(by_check) == {
        "version", "data folder", "configuration", "server", "port", "start at boot", "nvidia driver", "docker", "cgroups",
        "limits", "proxy", "aws environment", "aws command",
    }  # fmt: skip
    assert (
        "responds in" in by_check["server"][0]["found"]
        and full_version() in by_check["server"][0]["found"]
        and "differ by 0 s" in by_check["server"][1]["found"]
    )
    assert not any("could not be checked" in finding["found"] for finding in findings)
    assert not any("sim:8" in finding["advice"] for finding in by_check["nvidia driver"])  # GPUs are simulated already
    text = cli("doctor", env={"COLUMNS": "80"}).stdout
    assert max(map(len, text.splitlines())) <= 80 and "0 failures" in text


def test_doctor_says_what_to_do(own: Cli, tmp_path: Path) -> None:
    environment = {
        "HTTP_PROXY": "http://proxy:3128", "AWS_SESSION_TOKEN": "of another account", "AWS_PROFILE": "work",
        "DOCKER_HOST": f"unix://{tmp_path / 'no.sock'}",
    }  # fmt: skip
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 4566))
            taken.listen()
        except OSError:
            pass  # another process uses the port, which serves the test as well
        text = own("doctor", env=environment).stdout
    assert f"corral up --detach --data {own.data}" in text
    assert "port 4566 is in use by" in text and "corral up --port 0" in text
    assert "no_proxy does not contain 127.0.0.1" in text and "AWS_SESSION_TOKEN" in text and "AWS_PROFILE is work" in text


def test_doctor_asks_a_docker_engine_for_its_version(own: Cli, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "docker.sock"))
        engine.listen()

        def answer() -> None:
            asked, _ = engine.accept()
            assert asked.recv(65_536).startswith(b"GET /version ")
            asked.sendall(b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"Version": "26.1.4"}')
            asked.close()

        answering = threading.Thread(target=answer)
        answering.start()
        found = json.loads(own("doctor", "--json", env={"DOCKER_HOST": f"unix://{tmp_path / 'docker.sock'}"}).stdout)
        answering.join()
    assert any("engine 26.1.4 at" in finding["found"] for finding in found)


def test_doctor_fails_where_corral_could_not_work(own: Cli) -> None:
    own.home.joinpath("file").write_text("")
    done = own("doctor", "--data", str(own.home / "file" / "data"), code=1)
    assert "✗" in done.stdout and "1 failure" in done.stdout


# completion


def completed(cli: Cli, *words: str, env: dict[str, str] | None = None) -> list[str]:
    """What the shell's script would be told: the protocol itself."""
    asked = {"_CORRAL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("corral", *words)), "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [forkserver.program("corral")], env={**cli.environment, **asked, **(env or {})}, capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_only_tasks_that_the_command_can_use_are_completed(cli: Cli) -> None:
    cli.start_task("--gpus", "2", "--", "sh", "-c", UNTIL_TOLD, family="runs")
    cli("run", "-d", "--gpus", "1", "--name", "waits", "--", "true")
    cli("run", "-d", "--hold", "--name", "held", "--", "true")
    names = {"runs", "waits", "held"}
    for verb, expected in (("exec", {"runs"}), ("stop", names), ("ps", names), ("release", {"held"})):
        assert set(completed(cli, verb, "")) & names == expected, verb


def test_verbs_options_tasks_and_gpus_are_completed(cli: Cli) -> None:
    task_id = cli.start_task("--", "sh", "-c", UNTIL_TOLD)
    assert {"run", "top", "doctor", "hold"} <= set(completed(cli, ""))
    assert {"--gpus", "--time", "--array"} <= set(completed(cli, "run", "--"))
    assert completed(cli, "stop", task_id[:4]) == [task_id]
    assert task_id in completed(cli, "logs", "-f", "")
    assert completed(cli, "hold", "") == ["0", "1"]
    cli.client("ecr").create_repository(repositoryName="team/train")
    assert completed(cli, "images", "te") == ["team/train"]
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert completed(cli, "stop", "", env={**nowhere, "AWS_DEFAULT_REGION": "us-east-1"}) == []
    assert completed(cli, "stop", "", env={"CORRAL_DATA": "/nowhere"}) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(cli: Cli, shell: str) -> None:
    assert "_CORRAL_COMPLETE" in cli("completion", shell).stdout


def test_bash_takes_the_script(cli: Cli) -> None:
    """As bash itself would on Tab: the function fills COMPREPLY."""
    script = """
        eval "$(corral completion bash)"
        COMP_WORDS=(corral do) COMP_CWORD=1
        _corral_completion corral do corral
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], env=cli.environment, capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["down", "doctor"], done.stderr


def test_no_color_and_pipes_get_plain_text(cli: Cli) -> None:
    for verb in (["top", "--once"], ["doctor"], ["status"], ["ps"]):
        assert "\x1b" not in cli(*verb).stdout


def test_json_everywhere(cli: Cli) -> None:
    for words in (["status"], ["ps"], ["env"], ["top"], ["doctor"], ["images"]):
        json.loads(cli(*words, "--json").stdout)
