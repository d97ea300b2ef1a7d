"""On a machine with an NVIDIA GPU: pauses of real training runs. Needs PyTorch on the PATH's python3.

    python bench/gpu_pause.py [--sizes 1x10,20x3,60x3] [--results FILE] [--simulated]

A training run with deterministic algorithms has so many GiB on the GPU, and is paused and continued so many times. Its losses must
be those of a run that nothing has disturbed, bit by bit, and what it has on the GPU must be unchanged. The table has the seconds
out and back, GB/s, what is left on the GPU, and the time until an urgent run executes its first kernel. Then other kinds of
programs are paused: two processes with CUDA, `torch.compile`, a data loader with workers, and a client of MPS. With --simulated,
the same steps run on a simulated GPU without PyTorch, to test this script. Exit code 0 only if all of it held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from harness import Corral, container, eventually

GIB = 2**30
LEFT_MAX_MIB = 600
# Losses go to a file as text that has all bits. The ballast does not take part in the training, so its size changes no loss.
TRAINING = """
import os, sys, time
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
folder, gib, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
device = "cuda"
model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]).to(device)
if "compile" in sys.argv:
    model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(64, 512, 1024, device=device)
ballast = [torch.arange(at, at + 2**27, device=device, dtype=torch.int64) for at in range(int(gib))]
sums = [int(each.sum()) for each in ballast]
print("BALLAST", len(ballast), flush=True)
losses = open(f"{folder}/losses", "w", buffering=1)
at = 0
while at < steps if steps else not os.path.exists(f"{folder}/stop"):
    batch = data[at % 64]
    loss = torch.nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.write(f"{at} {loss.item().hex()}\\n")
    at += 1
    time.sleep(0 if steps else 0.002)
same = [int(each.sum()) for each in ballast] == sums
print("SAME" if same else "CHANGED", at, flush=True)
sys.exit(0 if same else 3)
"""
SIMULATED_TRAINING = """
import os, sys, time
folder, gib, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
losses = open(f"{folder}/losses", "w", buffering=1)
at, value = 0, 0.5
while at < steps if steps else not os.path.exists(f"{folder}/stop"):
    value = 3.9 * value * (1 - value)
    losses.write(f"{at} {value.hex()}\\n")
    at += 1
    time.sleep(0 if steps else 0.002)
print("SAME", at, flush=True)
"""
KERNEL = """
import sys, time, torch
began = time.time()
torch.ones(1, device="cuda").add_(1).item()
open(sys.argv[1], "w").write(repr(time.time()))
"""
SIMULATED_KERNEL = "import sys, time; open(sys.argv[1], 'w').write(repr(time.time()))"
TWO_PROCESSES = """
import os, subprocess, sys
folder = sys.argv[1]
os.makedirs(f"{folder}/child", exist_ok=True)
child = subprocess.Popen([sys.executable, f"{folder}/training.py", f"{folder}/child", "1", "0"])
os.symlink(f"{folder}/stop", f"{folder}/child/stop")
code = subprocess.run([sys.executable, f"{folder}/training.py", folder, "1", "0"]).returncode
sys.exit(code or child.wait())
"""
LOADER = """
import os, sys, time, torch
folder = sys.argv[1]
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, at): return torch.full((1024,), float(at))
def main():
    losses = open(f"{folder}/losses", "w", buffering=1)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=64, num_workers=2, pin_memory=True)
    for at, batch in enumerate(loader):
        losses.write(f"{at} {batch.to('cuda', non_blocking=True).sum().item().hex()}\\n")
        if os.path.exists(f"{folder}/stop"): break
        time.sleep(0.002)
    print("SAME", at, flush=True)
main()
"""
BANDWIDTH = """
import json, time, torch
def rate(copy, size):
    copy(); torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(3): copy()
    torch.cuda.synchronize()
    return 3 * size / (time.perf_counter() - began) / 1e9
size = 2 * 2**30
on_gpu = torch.empty(size, dtype=torch.uint8, device="cuda")
pinned, pageable = torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.ones(size, dtype=torch.uint8)
copies = {"pinned out": (pinned, on_gpu), "pinned in": (on_gpu, pinned), "pageable out": (pageable, on_gpu),
          "pageable in": (on_gpu, pageable)}
print(json.dumps({name: rate(lambda: to.copy_(of), size) for name, (to, of) in copies.items()}))
"""


class Bench:
    def __init__(self, corral: Corral, folder: Path, *, simulated: bool) -> None:
        self.corral = corral
        self.folder = folder
        self.simulated = simulated
        self.ecs = corral.client("ecs")
        self.results: dict[str, Any] = {}
        self.failures: list[str] = []
        (folder / "training.py").write_text(SIMULATED_TRAINING if simulated else TRAINING)
        (folder / "kernel.py").write_text(SIMULATED_KERNEL if simulated else KERNEL)

    def section(self, name: str, work: Callable[[], Any]) -> bool:
        began = time.monotonic()
        try:
            found = work()
        except Exception:
            traceback.print_exc()
            self.failures.append(name)
            print(f"{name}: FAILED after {time.monotonic() - began:.1f} s", flush=True)
            self.stop_all()
            return False
        self.results[name] = found
        print(f"{name}: {json.dumps(found)} ({time.monotonic() - began:.1f} s)", flush=True)
        return True

    def launch(self, name: str, command: list[str], folder: Path, **tags: str) -> str:
        folder.mkdir(exist_ok=True)
        definition = {**container(command, 1), "memoryReservation": 64}
        definition.pop("memory", None)  # without a hard limit
        self.ecs.register_task_definition(family=name, containerDefinitions=[definition])
        given = [{"key": f"corral:{key.replace('_', '-')}", "value": value} for key, value in {"name": name, **tags}.items()]
        [task] = self.ecs.run_task(taskDefinition=name, tags=given)["tasks"]
        return str(task["taskArn"])

    def train(self, name: str, gib: int, *more: str, **tags: str) -> tuple[str, Path]:
        folder = self.folder / name
        command = ["python3", str(self.folder / "training.py"), str(folder), str(gib), "0", *more]
        task = self.launch(name, command, folder, **tags)
        self.moves_on(folder, 180)
        return task, folder

    def steps(self, folder: Path) -> int:
        path = folder / "losses"
        return path.read_text().count("\n") if path.exists() else 0

    def moves_on(self, folder: Path, within_s: float = 60.0) -> None:
        before = self.steps(folder)
        eventually(lambda: self.steps(folder) > before, f"{folder.name} goes on", within_s)

    def pause(self, task: str) -> dict[str, Any]:
        run_corral(self.corral, "pause", task)
        return self.described(task, "paused")

    def resume(self, task: str) -> dict[str, Any]:
        run_corral(self.corral, "resume", "--wait", task)
        return self.described(task, "running")

    def described(self, task: str, phase: str) -> dict[str, Any]:
        found = json.loads(run_corral(self.corral, "show", "--json", task))
        pause = dict(found["pause"])
        assert pause["phase"] == phase, pause
        return pause

    def end(self, task: str, folder: Path) -> None:
        (folder / "stop").touch()
        done = eventually(lambda: stopped(self.ecs, task), "the run ends", 60)
        assert done["containers"][0]["exitCode"] == 0, done["containers"][0]

    def stop_all(self) -> None:
        for task in self.ecs.list_tasks()["taskArns"]:
            self.ecs.stop_task(task=task)
        eventually(lambda: not self.ecs.list_tasks()["taskArns"], "all runs have ended", 60)

    # The sections

    def reference(self) -> dict[str, Any]:
        """The losses of a run that nothing disturbs, without Corral."""
        folder = self.folder / "reference"
        folder.mkdir()
        began = time.monotonic()
        subprocess.run(["python3", self.folder / "training.py", folder, "1", "2000"], check=True, stdout=subprocess.DEVNULL)
        return {"steps": self.steps(folder), "seconds": round(time.monotonic() - began, 1)}

    def is_undisturbed(self, folder: Path) -> int:
        """Compare losses with those of the reference. Return how many steps were compared."""
        expected = (self.folder / "reference" / "losses").read_text().splitlines()
        found = (folder / "losses").read_text().splitlines()[: len(expected)]
        assert found == expected[: len(found)], "the losses differ from those of the undisturbed run"
        return len(found)

    def cycles(self, gib: int, count: int) -> dict[str, Any]:
        task, folder = self.train(f"size{gib}x{count}", gib)
        used_mib = self.gpu_used_mib()
        rows = []
        for _ in range(count):
            began = time.monotonic()
            out = self.pause(task)
            out_wall_s, left_mib, at = time.monotonic() - began, self.gpu_used_mib(), self.steps(folder)
            began = time.monotonic()
            back = self.resume(task)
            back_wall_s = time.monotonic() - began
            assert self.steps(folder) >= at
            self.moves_on(folder)
            rows.append((out["moveOutSeconds"], back["moveBackSeconds"], left_mib, out_wall_s, back_wall_s, out["hostMemoryMiB"]))
        self.end(task, folder)
        out_s, back_s = statistics.median(row[0] for row in rows), statistics.median(row[1] for row in rows)
        moved_gb = rows[0][5] * 2**20 / 1e9
        assert max(row[2] for row in rows) < LEFT_MAX_MIB, rows
        return {
            "cycles": count,
            "GPU MiB": used_mib,
            "moved GB": round(moved_gb, 1),
            "out s": round(out_s, 2),
            "back s": round(back_s, 2),
            "out GB/s": round(moved_gb / out_s, 2),
            "back GB/s": round(moved_gb / back_s, 2),
            "left MiB": max(row[2] for row in rows),
            "corral pause s": round(statistics.median(row[3] for row in rows), 2),
            "corral resume s": round(statistics.median(row[4] for row in rows), 2),
            "same losses of": self.is_undisturbed(folder),
        }

    def urgent(self, gib: int) -> dict[str, Any]:
        """How long an urgent run waits for its first kernel: on a free GPU, and on one that a preemptible run has."""
        task, folder = self.train(f"lends{gib}", gib, preemptible="true")
        found = {"with pause s": self.first_kernel("urgent")}
        eventually(lambda: self.described_phase(task) == "running", "the paused run continues", 120)
        self.moves_on(folder)
        self.end(task, folder)
        found["same losses of"] = self.is_undisturbed(folder)
        found["on a free GPU s"] = self.first_kernel("alone")
        return found

    def described_phase(self, task: str) -> str:
        return str(json.loads(run_corral(self.corral, "show", "--json", task))["pause"]["phase"])

    def first_kernel(self, name: str) -> float:
        mark, began = self.folder / f"{name}.mark", time.time()
        task = self.launch(name, ["python3", str(self.folder / "kernel.py"), str(mark)], self.folder / name, priority="10")
        done = eventually(lambda: stopped(self.ecs, task), "the urgent run ends", 180)
        assert done["containers"][0]["exitCode"] == 0, done
        return round(float(mark.read_text()) - began, 2)

    def two_processes(self) -> dict[str, Any]:
        (self.folder / "two.py").write_text(TWO_PROCESSES)
        folder = self.folder / "two"
        task = self.launch("two", ["python3", str(self.folder / "two.py"), str(folder)], folder)
        shutil.copy(self.folder / "training.py", folder)
        return self.once(task, folder, [folder / "child"])

    def loader(self) -> dict[str, Any]:
        (self.folder / "loader.py").write_text(LOADER)
        folder = self.folder / "loader"
        task = self.launch("loader", ["python3", str(self.folder / "loader.py"), str(folder)], folder)
        return self.once(task, folder)

    def compiled(self) -> dict[str, Any]:
        task, folder = self.train("compiled", 1, "compile")
        return self.once(task, folder)

    def once(self, task: str, folder: Path, others: list[Path] | None = None) -> dict[str, Any]:
        for each in [folder, *(others or [])]:
            self.moves_on(each, 120)
        out, left_mib = self.pause(task), self.gpu_used_mib()
        back = self.resume(task)
        for each in [folder, *(others or [])]:
            self.moves_on(each)
        self.end(task, folder)
        return {"out s": round(out["moveOutSeconds"], 2), "back s": round(back["moveBackSeconds"], 2), "left MiB": left_mib}

    def mps(self) -> dict[str, Any]:
        """The driver cannot move a client of MPS: the pause is refused, and the run goes on."""
        pipe = self.folder / "mps"
        pipe.mkdir()
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
        try:
            folder = self.folder / "client"
            command = ["env", f"CUDA_MPS_PIPE_DIRECTORY={pipe}", "python3", str(self.folder / "training.py"), str(folder), "1", "0"]
            task = self.launch("client", command, folder)
            self.moves_on(folder, 120)
            said = subprocess.run(
                [sys.executable, "-m", "corral", "pause", task], env=self.corral.environment, capture_output=True, text=True
            )
            self.moves_on(folder)
            phase = self.described_phase(task)
            self.end(task, folder)
            return {"exit code": said.returncode, "phase": phase, "said": (said.stdout + said.stderr).strip()[-300:]}
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, timeout=30)

    def bandwidth(self) -> dict[str, float]:
        done = subprocess.run(["python3", "-c", BANDWIDTH], capture_output=True, text=True, check=True)
        return {name: round(rate, 1) for name, rate in json.loads(done.stdout).items()}

    def gpu_used_mib(self) -> int:
        if self.simulated:
            return 0
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def stopped(ecs: Any, task: str) -> dict[str, Any] | None:
    [found] = ecs.describe_tasks(tasks=[task])["tasks"]
    return found if found["lastStatus"] == "STOPPED" else None


def run_corral(corral: Corral, *words: str) -> str:
    """Run the command, as a user does."""
    done = subprocess.run([sys.executable, "-m", "corral", *words], env=corral.environment, capture_output=True, text=True)
    assert done.returncode == 0, f"corral {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="1x10,20x3,60x3")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()
    sizes = [tuple(map(int, each.split("x"))) for each in options.sizes.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corral = Corral(folder / "data", "sim:1" if options.simulated else "auto").start()
        bench = Bench(corral, folder, simulated=options.simulated)
        try:
            if bench.section("reference", bench.reference) and bench.section("1 GiB, once", lambda: bench.cycles(1, 1)):
                for gib, count in sizes:
                    bench.section(f"{gib} GiB", lambda gib=gib, count=count: bench.cycles(gib, count))
                bench.section("urgent", lambda: bench.urgent(sizes[-1][0] if options.simulated else 20))
                for each in () if options.simulated else (bench.two_processes, bench.loader, bench.mps, bench.compiled):
                    bench.section(each.__name__, each)
            if not options.simulated:
                bench.section("bandwidth", bench.bandwidth)
        finally:
            for log in sorted((folder / "data").rglob("agent.log")):
                print(log.read_text()[-2000:])
            corral.clear()
        if options.results:
            options.results.write_text(json.dumps(bench.results, indent=1))
    print("FAILED: " + ", ".join(bench.failures) if bench.failures else "all of it held")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
