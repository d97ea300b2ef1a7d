"""Draw the pictures of docs/console.md: start a Corral with eight simulated GPUs, give it work, and photograph its pages.

    .venv/bin/python bench/console_picture.py

It takes two minutes. Simulated GPUs are as busy as the processes that hold them, so the runs compute and sleep in turns.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
CORRAL = str(Path(sys.executable).with_name("corral"))
HOST_NAME, HOME = "workstation", "/home/you/project"
HISTORY_S = 75  # of the graphs
PICTURE_MAX_BYTES = 150_000

TRAIN = """\
import os, sys, time
os.nice(19)
load, steps = float(os.environ["LOAD"]), 2000
print("\\x1b[1mtrain.py\\x1b[0m: 8 shards from \\x1b[36ms3://datasets/train\\x1b[0m", flush=True)
for step in range(steps):
    end_s = time.monotonic() + 0.1 * load
    while time.monotonic() < end_s:
        pass
    time.sleep(0.1 * (1 - load))
    done = 40 * step // steps
    bar = "\\x1b[32m" + "█" * done + "\\x1b[0m" + "░" * (40 - done)
    end = "\\n" if step % 40 == 39 else ""
    sys.stdout.write(f"step {step + 1} loss \\x1b[33m{2 / (1 + step / 50):.4f}\\x1b[0m\\n" if end else f"{bar} {step}/{steps}\\r")
    sys.stdout.flush()
"""
RUNS = (
    "-g 1 -n llama-sft -e LOAD=0.30 -- python train.py",
    "-g 2 -n dpo -e LOAD=0.12 -- python train.py",
    "-g 1 --share --gpu-memory 20g -n notebook -- sleep 3600",
    "-g 1 --share --gpu-memory 30g -n evaluate -- sleep 3600",
    "-g 3 -t 2h -n sweep --array 0-3%1 -- sleep 3600",
    "-g 4 -t 1h -n pretrain-7b -- sleep 100",
    "-g 2 -t 30m -n ablation --priority 5 -- sleep 100",
    "-g 1 --hold -n later -- sleep 100",
)
RENDER = "test $((AWS_BATCH_JOB_ARRAY_INDEX % 23)) != 7"


class Scene:
    """A Corral in a temporary folder, with work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CORRAL_", "REQUESTS_"))}
        own = {
            "HOME": str(folder),
            "CORRAL_DATA": str(folder / "data"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.environment = kept | own

    def corral(self, *words: str) -> str:
        done = subprocess.run([CORRAL, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120)
        if done.returncode:
            sys.exit(f"console_picture: corral {' '.join(words)}: {done.stderr}")
        return done.stdout.strip()

    def begin(self) -> dict[str, str]:
        """Start the work. Return the paths of pages in it."""
        self.corral("up", "--detach", "--port", "0", "--gpus", "sim:8xH200")
        [task, *_] = [self.corral("run", "-d", *run.split()) for run in RUNS]
        variables = dict(line.removeprefix("export ").split("=", 1) for line in self.corral("env").splitlines())
        values = {name: value.strip("'\"") for name, value in variables.items()}
        session = boto3.session.Session(values["AWS_ACCESS_KEY_ID"], values["AWS_SECRET_ACCESS_KEY"], region_name="us-east-1")
        batch: Any = session.client("batch", endpoint_url=values["AWS_ENDPOINT_URL"])
        batch.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
        while batch.describe_compute_environments()["computeEnvironments"][0]["status"] != "VALID":
            time.sleep(0.2)
        batch.create_job_queue(
            jobQueueName="cpus", priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": "here"}]
        )
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
        batch.register_job_definition(
            jobDefinitionName="render", type="container",
            containerProperties={"image": "corral/host", "command": ["sh", "-c", RENDER], "resourceRequirements": needs},
        )  # fmt: skip
        job = batch.submit_job(jobName="render", jobQueue="cpus", jobDefinition="render", arrayProperties={"size": 96})["jobId"]
        return {"overview": "", "task": f"tasks/default/{task}", "array": f"batch/job/{job}"}


def hide_this_machine(page: Page, folder: Path) -> None:
    """Replace the name of this machine and the temporary folder in all responses."""

    def replaced(route: Route) -> None:
        response = route.fetch()
        text = response.text().replace(f'"{socket.gethostname()}"', f'"{HOST_NAME}"')
        route.fulfill(response=response, body=text.replace(str(folder), HOME))

    page.route("**/call/**", replaced)


def open_console(browser: Browser, scene: Scene, scheme: Any, width: int, height: int) -> tuple[Page, str]:
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}).new_page()
    hide_this_machine(page, scene.folder)
    link = scene.corral("console")
    page.goto(link)
    expect(page.get_by_role("link", name="llama-sft").first).to_be_visible(timeout=60_000)
    return page, link.partition("#")[0]


def draw(page: Page, url: str, path: str, name: str) -> None:
    page.goto(f"{url}#/{path}")
    expect(page.locator("main h1")).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0, timeout=60_000)
    page.wait_for_timeout(3000)  # the log and the graphs
    file = PICTURES / f"console-{name}.png"
    page.screenshot(path=file)
    size = file.stat().st_size
    print(f"{file.name}: {size / 1000:.0f} kB")
    if size > PICTURE_MAX_BYTES:
        sys.exit(f"console_picture: {file.name} has {size} bytes, more than {PICTURE_MAX_BYTES}")


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("console_picture: chromium is missing: `make test-packages` installs it")
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder))
        try:
            paths = scene.begin()
            time.sleep(HISTORY_S)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
                light, url = open_console(browser, scene, "light", 1280, 860)
                draw(light, url, paths["overview"], "overview")
                draw(light, url, paths["array"], "array")
                dark, url = open_console(browser, scene, "dark", 1280, 1280)
                draw(dark, url, paths["task"], "task-dark")
                phone, url = open_console(browser, scene, "light", 390, 844)
                draw(phone, url, paths["overview"], "phone")
                browser.close()
        finally:
            scene.corral("down", "--stop-tasks")


if __name__ == "__main__":
    main()
