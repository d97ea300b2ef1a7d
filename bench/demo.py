"""`make demo`: the first minute with Corral, typed for you.

Starts a Corral of its own in a temporary folder, with its own port. Runs a GPU task with the stock aws command, lets a run wait
for a GPU, and then lets a fleet grow from zero with a message and shrink back. Prints every command before its output. Fails
unless everything really happened. At the end, and also if it is interrupted, it stops this Corral and deletes the folder.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

BIN = Path(sys.executable).parent
TEMPLATE = Path(__file__).parent / "demo_fleet.yaml"
COMMAND_S = 60.0
POLL_S = 0.2

TRAIN = """\
import os, time
print("hello from process", os.getpid(), flush=True)
print("CUDA_VISIBLE_DEVICES =", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
for step in range(3):
    time.sleep(0.1)
    print(f"step {step + 1} of 3", flush=True)
"""

WORKER = """\
import boto3, os
queue = boto3.resource("sqs").Queue(os.environ["QUEUE_URL"])
while True:
    for message in queue.receive_messages(WaitTimeSeconds=5):
        print("working on", message.body, flush=True)
        message.delete()
"""

# A person would write these lines, since the demonstration shows them.
DEFINITION = """\
{
  "family": "train",
  "containerDefinitions": [{
    "name": "main",
    "image": "corral/host",
    "command": ["python", "train.py"],
    "workingDirectory": %s,
    "memory": 256,
    "resourceRequirements": [{"type": "GPU", "value": "1"}],
    "logConfiguration": {"logDriver": "awslogs", "options": {
      "awslogs-group": "/demo", "awslogs-stream-prefix": "train",
      "awslogs-region": "us-east-1", "awslogs-create-group": "true"
    }}
  }]
}
"""


class Terminal:
    """A terminal in a folder. It shows what is typed and what comes back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The demonstration must not use the AWS configuration of the user.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CORRAL_"))}
        own = {"HOME": str(folder), "CORRAL_DATA": str(folder / "data"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        width = {"COLUMNS": str(shutil.get_terminal_size().columns)} if sys.stdout.isatty() else {}
        self.environment = {**kept, **own, **width, "PYTHONUNBUFFERED": "1"}

    def type(self, command: str) -> str:
        """Show a command, run it, and show and return its output."""
        print(f"\n\033[1m$ {command}\033[0m" if has_styles() else f"\n$ {command}", flush=True)
        done = self.run(command)
        print("\n".join(line.rstrip() for line in done.stdout.splitlines()), flush=True)
        if done.returncode:
            sys.exit(f"demo: this command ended with the exit code {done.returncode}")
        return done.stdout.strip()

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["bash", "-c", command],
                cwd=self._folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_S,
            )
        except subprocess.TimeoutExpired:
            sys.exit(f"demo: `{command}` did not end within {COMMAND_S:.0f} s")

    def until(self, command: str, holds: Callable[[Any], bool], what: str) -> None:
        """Run a command, which prints JSON, again and again until its result is as expected."""
        deadline = time.monotonic() + COMMAND_S
        while True:
            done = self.run(command)
            if done.returncode == 0 and holds(json.loads(done.stdout)):
                return
            if time.monotonic() > deadline:
                sys.exit(f"demo: expected {what} within {COMMAND_S:.0f} s; `{command}` prints:\n{done.stdout}")
            time.sleep(POLL_S)

    def say(self, text: str) -> None:
        print("\n" + "\n".join(f"# {line}" for line in text.splitlines()), flush=True)

    def take_over(self, lines: str) -> None:
        """Set the variables that `eval` would set in a shell."""
        for word in (shlex.split(line)[1] for line in lines.splitlines() if line.startswith("export ")):
            name, _, value = word.partition("=")
            self.environment[name] = value


def has_styles() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def free_gpus() -> int:
    """Return the number of GPUs of this machine, or 0 if there is none, or if other programs use one of them."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        in_use = any(pynvml.nvmlDeviceGetComputeRunningProcesses(handle) for handle in handles)
        pynvml.nvmlShutdown()
        return 0 if in_use else count
    except Exception:  # without a library, a driver or a GPU, the result is the same
        return 0


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"demo: expected {what}")


def run_one_task(terminal: Terminal) -> None:
    terminal.say("A task that needs one GPU, with the stock aws command. The response names\nthe GPU that is pinned to the task.")
    terminal.type("cat train.json")
    terminal.type(
        "aws ecs register-task-definition --cli-input-json file://train.json \\\n    --query taskDefinition.taskDefinitionArn"
    )
    reply = terminal.type("aws ecs run-task --task-definition train --output json \\\n    --query 'tasks[0].containers[0].gpuIds'")
    gpu_ids = json.loads(reply)
    expect(len(gpu_ids) == 1 and gpu_ids[0].startswith("GPU-"), "one GPU id in the response of run-task")
    log = terminal.type("corral logs -f train")
    expect(f"CUDA_VISIBLE_DEVICES = {gpu_ids[0]}" in log and "step 3 of 3" in log, "the output of the task in its log")


def wait_in_line(terminal: Terminal, gpus: int) -> None:
    terminal.say("A run that finds no free GPU waits in line. `corral ps` says why.")
    terminal.type(f"corral run --detach --gpus {gpus} --name exp1 -- sleep 600")
    terminal.type("corral run --detach --gpus 1 --name exp2 -- \\\n    sh -c 'echo my turn, on $CUDA_VISIBLE_DEVICES'")
    listed = terminal.type("corral ps")
    expect(f"exp1 holds {gpus} of {gpus} GPUs" in " ".join(listed.split()), "the reason why the second run waits")
    terminal.say("When the GPUs are free, it starts by itself.")
    terminal.type("corral stop exp1")
    log = terminal.type("corral logs -f exp2")
    expect("my turn, on GPU-" in log, "the output of the run that waited")


def grow_from_zero(terminal: Terminal) -> None:
    terminal.say(
        "A fleet from zero: a queue, an alarm, a scaling policy, an Auto Scaling group\n"
        "and a service. The stack is bench/demo_fleet.yaml. No worker runs yet."
    )
    terminal.type(
        "aws cloudformation create-stack --stack-name fleet --query StackId \\\n"
        "    --template-body file://fleet.yaml --parameters \\\n"
        '    "ParameterKey=Command,ParameterValue=$(which python) $PWD/worker.py"'
    )
    terminal.until("corral stack fleet --json", lambda stack: stack["status"] == "CREATE_COMPLETE", "a complete stack")
    terminal.type("corral stack fleet")
    expect(not json.loads(terminal.run("corral instances --json").stdout), "no instance before the first message")
    terminal.say("A message arrives. The alarm goes off, an instance with a GPU starts, and a\nworker on it receives the message.")
    terminal.type(
        "corral aws sqs send-message --message-body 'image 1' --query MessageId \\\n"
        "    --queue-url $AWS_ENDPOINT_URL/123456789012/images"
    )
    events = "corral aws logs filter-log-events --log-group-name /demo --filter-pattern working --query 'events[].message'"
    terminal.until(f"{events} --output json", lambda found: found == ["working on image 1"], "a worker that received the message")
    shown = terminal.type("corral fleet fleet --once")
    expect("0 → 1" in shown, "a scale-out from 0 to 1")
    terminal.say("The queue is empty. After a period of the alarm (10 s), the fleet is back at\nzero, and its GPU is free.")
    terminal.until("corral instances --json", lambda found: not found, "no instance after the last message")
    shown = terminal.type("corral instances --all")
    expect("terminated" in shown, "the instance of the worker, terminated")
    counts = json.loads(terminal.run("corral status --json").stdout)["tasks"]
    expect(not counts.get("RUNNING"), "no running task")


def interrupt(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="corral-demo-"))
    terminal = Terminal(folder)
    try:
        (folder / "train.py").write_text(TRAIN)
        (folder / "worker.py").write_text(WORKER)
        (folder / "train.json").write_text(DEFINITION % json.dumps(str(folder)))
        (folder / "fleet.yaml").write_text(TEMPLATE.read_text())
        found = free_gpus()
        terminal.say(
            f"The tasks get the {found} NVIDIA GPU{'s' * (found != 1)} of this machine."
            if found
            else "This machine has no free NVIDIA GPU, so two are simulated."
        )
        terminal.type(f"corral up --detach --port 0 --runtime process \\\n    --gpus {'auto' if found else 'sim:2'}")
        terminal.take_over(terminal.type("corral env"))
        terminal.say('From here on as after eval "$(corral env)": every AWS client in this shell\ntalks to Corral.')
        run_one_task(terminal)
        wait_in_line(terminal, found or 2)
        grow_from_zero(terminal)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # nothing interrupts the end
            signal.signal(number, signal.SIG_IGN)
        stop(terminal, folder)
    terminal.say(
        f"All of this happened in {time.monotonic() - began:.0f} s. The Corral of the demonstration has stopped, and\n"
        "its folder is deleted. Start your own with: corral up --detach"
    )


def stop(terminal: Terminal, folder: Path) -> None:
    """Stop the Corral of the demonstration, if it runs, and delete its folder."""
    if (folder / "data").exists():
        down = [BIN / "corral", "down", "--stop-tasks"]
        done = subprocess.run(down, env=terminal.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode not in (0, 3):  # 3: it is not running
            print(f"demo: `corral down` failed: {done.stderr}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
