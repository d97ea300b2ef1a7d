"""`make demo`: the first two minutes with Corral, typed for you.

Starts a Corral of its own in a temporary folder, runs GPU tasks on it with the stock aws command and with corral's verbs,
prints every command before its output, and ends with everything gone. It fails unless everything really happened.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.executable).parent
COMMAND_S = 60.0

TRAIN = """\
import os, time
print("hello from process", os.getpid(), flush=True)
print("CUDA_VISIBLE_DEVICES =", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
for step in range(3):
    time.sleep(0.1)
    print(f"step {step + 1} of 3", flush=True)
"""

# Written as a person would write it, since it is shown.
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
      "awslogs-group": "/demo", "awslogs-region": "us-east-1", "awslogs-stream-prefix": "train", "awslogs-create-group": "true"
    }}
  }]
}
"""


class Terminal:
    """A terminal in a folder: what is typed is shown, and so is what comes back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Nothing of the user's own AWS configuration may lead the demo elsewhere.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CORRAL_"))}
        own = {"HOME": str(folder), "CORRAL_DATA": str(folder / "data"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.environment = {**kept, **own, "PYTHONUNBUFFERED": "1", "COLUMNS": kept.get("COLUMNS", "120")}

    def type(self, command: str) -> str:
        print(f"\n\033[1m$ {command}\033[0m" if sys.stdout.isatty() else f"\n$ {command}", flush=True)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
        )
        print("\n".join(line.rstrip() for line in done.stdout.splitlines()), flush=True)
        if done.returncode:
            sys.exit(f"demo: that ended with {done.returncode}")
        return done.stdout.strip()

    def say(self, text: str) -> None:
        print(f"\n# {text}", flush=True)

    def take_over(self, lines: str) -> None:
        """What `eval` does in a shell."""
        for word in (shlex.split(line)[1] for line in lines.splitlines() if line.startswith("export ")):
            name, _, value = word.partition("=")
            self.environment[name] = value


def real_gpus() -> int:
    """How many GPUs NVML shows; 0 without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
        return count
    except Exception:  # no library, no driver, no GPU: it comes to the same
        return 0


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"demo: expected {what}")


def run_one_task(terminal: Terminal) -> None:
    terminal.say("A task that needs one GPU, with the stock aws command. The answer names the GPU that is pinned to it.")
    terminal.type("cat train.json")
    terminal.type("aws ecs register-task-definition --cli-input-json file://train.json --query taskDefinition.taskDefinitionArn")
    reply = terminal.type(
        "aws ecs run-task --task-definition train --output json "
        "--query 'tasks[0].{taskArn:taskArn,lastStatus:lastStatus,gpuIds:containers[0].gpuIds}'"
    )
    task = json.loads(reply)
    expect(len(task["gpuIds"]) == 1 and task["gpuIds"][0].startswith("GPU-"), "one GPU id in run-task's own reply")
    task_id = task["taskArn"].rpartition("/")[2]
    log = terminal.type(f"corral logs -f {task_id[:8]}")
    expect(f"CUDA_VISIBLE_DEVICES = {task['gpuIds'][0]}" in log and "step 3 of 3" in log, "the task's own lines in its log")
    code = terminal.type(f"aws ecs describe-tasks --tasks {task_id} --query 'tasks[0].containers[0].exitCode'")
    expect(code == "0", "exit code 0")


def wait_in_line(terminal: Terminal, gpus: int) -> None:
    terminal.say("No free GPU is no error: the next task waits in line, says why, and starts by itself.")
    holder = terminal.type(f"corral run --detach --gpus {gpus} --name holder -- sleep 600")
    waiter = terminal.type("corral run --detach --gpus 1 --name waiter -- sh -c 'echo my turn, on $CUDA_VISIBLE_DEVICES'")
    listed = terminal.type("corral ps")
    expect(f"held by task {holder[:8]}" in " ".join(listed.split()), "the reason why the second task waits")
    text = terminal.type("corral status")
    expect("1 running, 1 waiting" in text and text.count(holder[:8]) >= gpus, "every GPU held by one task and another waiting")
    terminal.type(f"corral stop {holder[:8]}")
    log = terminal.type(f"corral logs -f {waiter[:8]}")
    expect("my turn, on GPU-" in log, "the waiting task's own line")
    listed = terminal.type("corral ps --all")
    expect(listed.count("STOPPED") == 3, "three tasks that have stopped")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="corral-demo-"))
    terminal = Terminal(folder)
    up = False
    try:
        (folder / "train.py").write_text(TRAIN)
        (folder / "train.json").write_text(DEFINITION % json.dumps(str(folder)))
        found = real_gpus()
        terminal.say(
            f"This machine has {found} NVIDIA GPU{'s' * (found != 1)}: the tasks get them."
            if found
            else "This machine has no NVIDIA GPU, so two are simulated."
        )
        up = True
        terminal.type(f"corral up --detach --port 0 --gpus {'auto' if found else 'sim:2'}")
        terminal.take_over(terminal.type("corral env"))
        terminal.say('From here on as after eval "$(corral env)": every AWS client in this shell talks to Corral.')
        run_one_task(terminal)
        wait_in_line(terminal, found or 2)
    finally:
        if up:
            down = [BIN / "corral", "down", "--stop-tasks"]
            subprocess.run(down, env=terminal.environment, capture_output=True, timeout=COMMAND_S)
        shutil.rmtree(folder, ignore_errors=True)
    terminal.say("Everything happened as it should; the demo's Corral is gone again. Your own: corral up --detach")


if __name__ == "__main__":
    main()
