"""The flag --gpus, simulated GPUs and real GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from corral.cli.checks.finding import WARN
from corral.cli.checks.machine import hardware_error_reports
from corral.core.errors import Refused
from corral.model.gpu import MODELS, GpuHealth
from corral.model.gpu_metrics import gpu_values
from corral.node import gpu_topology
from corral.node.gpu_faults import GpuFaults
from corral.node.gpus import NoGpus, SimulatedGpus, detect, find_devices
from corral.node.gpus_flag import GpusFlag, parse_gpus_flag
from corral.node.nvml import NvmlGpus
from corral.node.procfs import is_ours, process_name
from eventually import eventually


@pytest.mark.parametrize(
    "text, flag",
    [
        ("auto", GpusFlag("auto")),
        ("none", GpusFlag("none")),
        ("sim:1", GpusFlag("sim", 1, "H100")),
        ("sim:64", GpusFlag("sim", 64, "H100")),
        ("sim:2xH200", GpusFlag("sim", 2, "H200")),
        ("sim:8xa100-80gb", GpusFlag("sim", 8, "A100-80GB")),
    ],
)
def test_valid_flags(text, flag):
    assert parse_gpus_flag(text) == flag


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "is not valid: use auto, none, sim"),
        ("all", "is not valid: use auto, none, sim"),
        ("sim", "is not valid: use auto, none, sim"),
        ("sim:", "is not valid: use auto, none, sim"),
        ("sim:x", "is not valid: use auto, none, sim"),
        ("sim:-1", "is not valid: use auto, none, sim"),
        ("sim:2x", "is not valid: use auto, none, sim"),
        ("sim:2 xH200", "is not valid: use auto, none, sim"),
        ("sim:0", "from 1 to 64"),
        ("sim:65", "from 1 to 64"),
        ("sim:2xH2000", "use one of B200, H200, H100"),
    ],
)
def test_invalid_flags(text, says):
    with pytest.raises(Refused, match=says):
        parse_gpus_flag(text)


def test_simulated_gpus_keep_their_ids():
    first, again, other = detect("sim:2xT4", "host"), detect("sim:2xT4", "host"), detect("sim:2xT4", "other")
    assert first.devices() == again.devices()
    assert not {gpu.gpu_id for gpu in first.devices()} & {gpu.gpu_id for gpu in other.devices()}
    assert [(gpu.index, gpu.model, gpu.memory_mib) for gpu in first.devices()] == [
        (0, "Tesla T4", 15_360),
        (1, "Tesla T4", 15_360),
    ]
    assert all(memory_mib > 1024 for _, memory_mib in MODELS.values())


def test_no_gpus():
    assert detect("none", "host").devices() == []


def test_simulated_gpus_are_as_busy_as_the_processes_pinned_to_them():
    gpus = SimulatedGpus("host", 3, "H100")
    a, b, c = (gpu.gpu_id for gpu in gpus.devices())
    busy = subprocess.Popen([sys.executable, "-c", "x = b'x' * 50_000_000\nwhile True: pass"], start_new_session=True)
    try:
        assert gpus.sample({}) == gpus.sample({c: {}})
        shares = {a: {"r": busy.pid}, b: {"r": busy.pid}}  # one core, two GPUs: half each
        first, second, _ = eventually(lambda: _if_busy(gpus.sample(shares)), "both busy")
        assert first.utilization_percent == second.utilization_percent
        assert first.memory_used_mib == second.memory_used_mib
        eventually(lambda: gpus.sample({a: {"r": busy.pid}})[0].utilization_percent > 50, "busy")
        eventually(lambda: gpus.sample({a: {"r": busy.pid}})[0].memory_used_mib > 40, "has its memory")
        sample = {sample.gpu_id: sample for sample in gpus.sample({a: {"r": busy.pid}})}
        assert (sample[b].utilization_percent, sample[c].memory_used_mib) == (0, 0)
    finally:
        busy.kill()
        busy.wait()
    assert gpus.sample({a: {"r": busy.pid}})[0].utilization_percent == 0


def test_a_program_that_never_sleeps_keeps_its_simulated_gpu_busy_on_a_loaded_machine():
    """Three programs share one core."""
    gpus = SimulatedGpus("host", 3, "H100")
    core = min(os.sched_getaffinity(0))
    loop = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    programs = [subprocess.Popen([sys.executable, "-c", loop], start_new_session=True) for _ in range(3)]
    live = {gpu.gpu_id: {"r": program.pid} for gpu, program in zip(gpus.devices(), programs, strict=True)}
    try:
        eventually(lambda: all(sample.utilization_percent > 90 for sample in gpus.sample(live)), "all busy")
    finally:
        for program in programs:
            program.kill()
            program.wait()


def test_a_command_in_a_run_counts_with_the_run():
    """ECS Exec starts it in another session, with the environment of the run."""
    gpus = SimulatedGpus(f"host of commands in {os.getpid()}", 2, "H100")
    a, b = (gpu.gpu_id for gpu in gpus.devices())
    seeing = {**os.environ, "CUDA_VISIBLE_DEVICES": a}
    run = subprocess.Popen(["sleep", "600"], start_new_session=True, env=seeing)
    command = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True, env=seeing)
    try:
        live, ours = {a: {"r": run.pid}, b: {}}, {run.pid, command.pid}
        eventually(lambda: gpus.sample(live, ours)[0].utilization_percent > 90, "busy")
        assert gpus.sample(live, ours)[1].utilization_percent == 0
        assert gpus.sample({b: {}}, ours)[0].utilization_percent == 0, "no run has the GPU"
    finally:
        for program in (run, command):
            program.kill()
            program.wait()


def _if_busy(samples):
    return samples if samples[0].utilization_percent > 0 else None


def test_a_missing_driver_is_reported_with_a_remedy():
    gpus = detect("auto", "host")
    if not isinstance(gpus, NoGpus):
        pytest.skip("this machine has NVIDIA GPUs")
    assert gpus.devices() == [] and gpus.sample({}) == []
    assert "NVIDIA driver" in gpus.note and "--gpus sim:8" in gpus.note


@pytest.mark.gpu
def test_real_gpus():
    gpus = detect("auto", "host")
    if isinstance(gpus, NoGpus):
        pytest.skip("no NVIDIA GPU on this machine")
    for device, sample in zip(gpus.devices(), gpus.sample({}), strict=True):
        assert device.gpu_id == sample.gpu_id and device.gpu_id.startswith("GPU-") and not device.simulated
        assert device.memory_mib > 1024 and device.model
        assert 0 <= sample.utilization_percent <= 100
        assert 0 <= sample.memory_used_mib <= device.memory_mib
        assert sample.temperature_c is None or 0 < sample.temperature_c < 120


@pytest.mark.gpu
def test_real_gpus_list_the_processes_on_them():
    gpus = detect("auto", "host")
    if isinstance(gpus, NoGpus):
        pytest.skip("no NVIDIA GPU on this machine")
    links = gpus.links()
    assert links is None or [len(row) for row in links] == [len(gpus.devices())] * len(gpus.devices())
    assert all(isinstance(pid, int) and name for sample in gpus.sample({}) for pid, name in sample.foreign)


# GPUs that are not offered


def test_devices_are_named_by_index_or_id():
    devices = detect("sim:4", "host").devices()
    ids = [device.gpu_id for device in devices]
    assert find_devices(f"3, {ids[0]},0,", devices) == sorted([ids[0], ids[3]])
    assert find_devices("", devices) == []
    with pytest.raises(Refused, match=f"there is no GPU 4; there are 0 \\({ids[0]}\\), 1"):
        find_devices("0,4", devices)
    with pytest.raises(Refused, match="there are none"):
        find_devices("0", [])


# How far they are from each other


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", [1, 2, 5, 8, 64])
def test_simulated_distances(model, count):
    links = gpu_topology.simulated(model, count)
    for at in range(count):
        assert links[at][at] == 0
        for other in range(count):
            assert links[at][other] == links[other][at] and (at == other or 1 <= links[at][other] <= gpu_topology.FAR)


def test_simulated_machines():
    assert {far for row in gpu_topology.simulated("H100", 8) for far in row} == {0, gpu_topology.NVLINK}
    v100 = gpu_topology.simulated("V100", 8)
    assert sum(far == gpu_topology.FAR for far in v100[0]) == 3 and {v100[0][at] for at in (1, 2, 3)} == {1, 2}
    t4 = gpu_topology.simulated("T4", 8)
    assert t4[0] == [0, 4, 7, 7, 8, 8, 8, 8]
    assert gpu_topology.simulated("K80", 2) == [[0, 3], [3, 0]]
    assert detect("sim:8xV100", "host").links() == v100 and detect("none", "host").links() is None


class FakeNvml:
    """A driver with four devices: 0 and 1 are connected by two NVLinks, 2 and 3 by one switch; processes compute on 0."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU, NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 0, 2, 0
    NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED = 18, 1

    def __init__(self, processes, levels=None):
        self.processes = processes
        self.levels = levels or {(0, 1): 50, (2, 3): 10}

    def __getattr__(self, name):
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 4,
            "nvmlDeviceGetHandleByIndex": lambda index: SimpleNamespace(index=index),
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle.index}",
            "nvmlDeviceGetName": lambda handle: "NVIDIA A6000",
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=7),
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(domain=0, bus=handle.index, device=0),
            "nvmlDeviceGetNvLinkState": self._link_state,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, link: SimpleNamespace(domain=0, bus=1 - handle.index, device=0),
            "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: self.levels.get(
                (min(one.index, other.index), max(one.index, other.index)), 40
            ),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: self.processes if handle.index == 0 else [],
        }
        return answers.get(name, self._not_supported)

    def _memory(self, handle, version=None):
        """The second version counts reserved memory separately."""
        used = {"used": 2**30, "reserved": 2**29} if version is not None else {"used": 2**30 + 2**29}
        return SimpleNamespace(total=48 * 2**30, **used)

    def _link_state(self, handle, link):
        return 1 if handle.index < 2 and link < 2 else self._not_supported()

    def _not_supported(self, *arguments):
        raise self.NVMLError("not supported")


def test_distances_from_the_driver():
    gpus = NvmlGpus(FakeNvml([]))
    near, pair, node = gpu_topology.NVLINKS, gpu_topology.SAME_SWITCH, gpu_topology.SAME_SOCKET
    assert gpus.links() == [[0, near, node, node], [near, 0, node, node], [node, node, 0, pair], [node, node, pair, 0]]
    assert NvmlGpus(FakeNvml([], levels={(2, 3): 77})).links() is None, "an unknown level"


def test_memory_that_the_driver_reserves_is_neither_used_nor_free():
    sample = NvmlGpus(FakeNvml([])).sample({})[0]
    assert (sample.memory_used_mib, sample.memory_reserved_mib) == (1024, 512)
    free = [(value, metric.unit) for metric, value in gpu_values(sample, 48 * 1024) if metric.name == "DCGM_FI_DEV_FB_FREE"]
    assert free == [(47 * 1024 - 512, "Megabytes")]


# Whose processes compute on them


def test_which_processes_are_ours():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert is_ours(child.pid, {child.pid}) is True, "the session"
        assert is_ours(child.pid, {os.getpid()}) is True, "a descendant"
        assert is_ours(child.pid, {2**22}) is False
    finally:
        child.communicate()
    assert is_ours(child.pid, {os.getpid()}) is None, "gone"


def test_foreign_processes_from_the_driver():
    others = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        gpus = NvmlGpus(FakeNvml([SimpleNamespace(pid=others.pid)]))
        [(pid, name)] = gpus.sample({})[0].foreign
        assert pid == others.pid and name.startswith("python")
        assert [sample.foreign for sample in gpus.sample({})[1:]] == [[], [], []]
        assert gpus.sample({"GPU-0": {"r": others.pid}}, {others.pid})[0].foreign == []
    finally:
        others.communicate()


def test_the_mps_server_is_not_foreign(tmp_path):
    """It has a context on each GPU. Its clients, which compute, are listed with their own pids."""
    program = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("cat"), program)
    server = subprocess.Popen([program], stdin=subprocess.PIPE, start_new_session=True)
    client = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        gpus = NvmlGpus(FakeNvml([SimpleNamespace(pid=server.pid), SimpleNamespace(pid=client.pid)]))
        eventually(lambda: process_name(server.pid).startswith("nvidia"))
        assert [pid for pid, _ in gpus.sample({})[0].foreign] == [client.pid]
    finally:
        server.communicate()
        client.communicate()


def test_a_process_that_is_not_visible():
    """It has just ended. Inside a container it may be a process outside, unless one of our runs has that GPU."""
    gpus = NvmlGpus(FakeNvml([SimpleNamespace(pid=2**22 + 1)]))
    outside = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    assert gpus.sample({})[0].foreign == ([] if outside else [(2**22 + 1, "?")])
    assert gpus.sample({"GPU-0": {"r": 1}})[0].foreign == []


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_a_process_with_a_simulated_gpu_in_its_environment_is_foreign(variable):
    gpus = SimulatedGpus(f"host of {variable} in {os.getpid()}", 3, "H100")  # other tests run at the same time
    a, b, _ = (gpu.gpu_id for gpu in gpus.devices())
    seeing = subprocess.Popen([sys.executable, "-c", "input()"], env={**os.environ, variable: f"{a},{b}"}, stdin=subprocess.PIPE)
    try:
        eventually(lambda: gpus.sample({})[0].foreign, "its environment is there once it has begun")
        assert [[pid for pid, _ in sample.foreign] for sample in gpus.sample({})] == [[seeing.pid], [seeing.pid], []]
        assert not any(sample.foreign for sample in gpus.sample({}, {os.getpid()}))
    finally:
        seeing.communicate()
    assert not any(sample.foreign for sample in gpus.sample({}))


# Parts of runs that share a GPU


class MeasuringNvml(FakeNvml):
    """A driver that measures the load of each process on GPU 0."""

    NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND = 0, 3, 6

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(value)
            self.value = value

    def __init__(self, percent, load, memory=()):
        super().__init__([SimpleNamespace(pid=pid, usedGpuMemory=mib * 2**20) for pid, mib in memory])
        self.percent, self.load, self.at_us, self.error = percent, load, 1_000_000, 0

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=self.percent),
            "nvmlDeviceGetProcessUtilization": self._measured,
        }
        return answers.get(name) or super().__getattr__(name)

    def _measured(self, handle, since_us):
        if self.error or not self.load or self.at_us <= since_us:
            raise self.NVMLError(self.error or self.NVML_ERROR_NOT_FOUND)
        return [SimpleNamespace(pid=pid, timeStamp=self.at_us, smUtil=percent) for pid, percent in self.load.items()]

    def _not_supported(self, *arguments):
        raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)


def test_the_parts_of_runs_that_share_a_gpu(tmp_path):
    waits = [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"]
    mark = {**os.environ, "CORRAL_RUN": "/data/node/idle"}
    server = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("cat"), server)
    commands = ((waits, None), (waits, None), ([sys.executable, "-c", "input()"], mark), ([server], None))
    started = [subprocess.Popen(each, stdin=subprocess.PIPE, start_new_session=True, env=env) for each, env in commands]
    busy, idle, orphan, mps = (each.pid for each in started)
    runs = {"GPU-0": {"busy": busy, "idle": idle}}

    def parts(nvml, live=runs):
        sample = NvmlGpus(nvml).sample(live)[0]
        found = (
            None if sample.parts is None else {run: (p.utilization_percent, p.memory_used_mib) for run, p in sample.parts.items()}
        )
        return found, sample.why_no_parts

    try:
        children = Path(f"/proc/{busy}/task/{busy}/children")
        child = int(eventually(children.read_text, "the program of the run has started another one"))
        eventually(lambda: process_name(mps).startswith("nvidia"))
        eventually(lambda: b"CORRAL_RUN" in Path(f"/proc/{orphan}/environ").read_bytes())
        assert parts(MeasuringNvml(80, {child: 80}, [(child, 300), (idle, 20)])) == ({"busy": (80.0, 300), "idle": (0.0, 20)}, "")
        assert parts(MeasuringNvml(90, {busy: 60, orphan: 30})) == ({"busy": (60.0, None), "idle": (30.0, None)}, ""), (
            "its variable"
        )
        assert parts(MeasuringNvml(100, {busy: 100, idle: 100}))[0] == {"busy": (50.0, None), "idle": (50.0, None)}, (
            "at the same time"
        )
        assert parts(MeasuringNvml(0, {}))[0] == {"busy": (0.0, None), "idle": (0.0, None)}
        assert parts(MeasuringNvml(80, {busy: 80}), {"GPU-0": {"busy": busy}}) == (None, ""), "a run that has the GPU alone"
        refusing = MeasuringNvml(80, {busy: 80})
        refusing.error = refusing.NVML_ERROR_NOT_SUPPORTED
        for nvml, says in (
            (refusing, "does not report the load of single processes"),
            (FakeNvml([]), "does not report the load of single processes"),
            (MeasuringNvml(80, {}), "reports a load of the GPU, but no load of single processes"),
            (MeasuringNvml(80, {mps: 80}), "the load of the MPS server"),
        ):
            found, why = parts(nvml)
            assert found is None and says in why
        nvml = MeasuringNvml(80, {busy: 80})
        gpus = NvmlGpus(nvml)
        for _ in range(2):  # the driver has no newer values yet
            assert gpus.sample(runs)[0].parts["busy"].utilization_percent == 80.0
        nvml.at_us, nvml.load = 1_500_000, {idle: 20}
        assert gpus.sample(runs)[0].parts["busy"].utilization_percent == 0.0
    finally:
        for each in started:
            each.communicate()


def test_runs_that_share_a_simulated_gpu():
    gpus = SimulatedGpus(f"host of parts in {os.getpid()}", 1, "H100")
    loop = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(each, start_new_session=True) for each in (loop, loop, ["sleep", "600"])]
    one, two, idle = (each.pid for each in started)
    runs = {gpus.devices()[0].gpu_id: {"one": one, "two": two, "idle": idle}}
    try:

        def is_idle(sample):
            return sample.utilization_percent > 95 and sample.parts["idle"].utilization_percent == 0.0

        sample = eventually(lambda: is_idle(found := gpus.sample(runs)[0]) and found, "the idle run has begun, and sleeps")
        assert sum(part.utilization_percent for part in sample.parts.values()) < 100.5
        assert all(sample.parts[run].utilization_percent > 5 and sample.parts[run].memory_used_mib for run in ("one", "two"))
    finally:
        for each in started:
            each.kill()
            each.wait()


# Health


class FailingNvml(FakeNvml):
    """A driver that reports errors: Xids, lost GPUs, and the state of the memory."""

    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED, NVML_SUCCESS = 15, 16, 0

    def __init__(self):
        super().__init__([])
        self.events: list[tuple[int, int]] = []
        self.lost: set[int] = set()
        self.silent: set[int] = set()  # GPUs whose events it does not report
        self.rows = dict.fromkeys(range(4), (0, 0, 0, 0))
        self.errors = dict.fromkeys(range(4), 0)
        self.action = dict.fromkeys(range(4), 0)

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetUUID": self._uuid,
            "nvmlEventSetCreate": lambda: "events",
            "nvmlEventSetFree": lambda events: None,
            "nvmlDeviceRegisterEvents": lambda handle, kinds, events: self._register(handle),
            "nvmlEventSetWait_v2": self._next_event,
            "nvmlDeviceGetRemappedRows": lambda handle: self.rows[handle.index],
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, since: self.errors[handle.index],
            "nvmlDeviceGetFieldValues": lambda handle, fields: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.action[handle.index]))
            ],
        }
        return answers.get(name) or super().__getattr__(name)

    def _uuid(self, handle):
        if handle.index in self.lost:
            error = self.NVMLError("lost")
            error.value = self.NVML_ERROR_GPU_IS_LOST
            raise error
        return f"GPU-{handle.index}"

    def _register(self, handle):
        if handle.index in self.silent:
            raise self.NVMLError("Not Supported")

    def _next_event(self, events, timeout_ms):
        assert timeout_ms == 0, "the agent does not wait for events"
        if not self.events:
            raise self.NVMLError("timeout")
        index, xid = self.events.pop(0)
        return SimpleNamespace(device=SimpleNamespace(index=index), eventData=xid)


def test_a_driver_that_does_not_report_xids_is_named(caplog):
    driver = FailingNvml()
    handles = [SimpleNamespace(index=index) for index in range(4)]
    assert [finding.level for finding in hardware_error_reports(driver, handles)] == ["ok"]
    driver.silent = {1, 2}
    [finding] = hardware_error_reports(driver, handles)
    assert (finding.level, finding.found) == (
        WARN,
        "the driver does not report hardware errors (Xids) of GPUs 1-2: Not Supported",
    )
    assert "corral hold" in finding.advice
    NvmlGpus(driver)
    assert "does not report hardware errors (Xids) of GPU-1: Not Supported" in caplog.text


def test_xids_of_the_driver():
    driver = FailingNvml()
    gpus = NvmlGpus(driver)
    assert gpus.health() == GpuHealth([], {})
    driver.events = [(1, 79), (3, 31), (1, 48)]
    assert gpus.health().xids == [("GPU-1", 79), ("GPU-3", 31), ("GPU-1", 48)]
    assert gpus.health().xids == []
    driver.lost, driver.events = {2}, [(2, 79)]
    assert gpus.health().xids == [("GPU-2", 79)], "the driver cannot name a lost GPU"


def test_faults_that_last():
    driver = FailingNvml()
    driver.rows[1], driver.rows[2], driver.errors[3] = (0, 1, 1, 0), (0, 1, 1, 1), 2
    gpus = NvmlGpus(driver)
    driver.lost = {0}
    assert gpus.health().conditions == {
        "GPU-0": "the GPU is lost: the driver cannot reach it any more",
        "GPU-1": "a memory row must be remapped; reset the GPU",
        "GPU-2": "the remapping of a memory row failed; the GPU must be replaced",
        "GPU-3": "2 uncorrectable memory errors since the last reset; reset the GPU",
    }
    again = NvmlGpus(driver)
    assert [gpu.gpu_id for gpu in again.devices()] == ["GPU-1", "GPU-2", "GPU-3"], "a lost GPU does not hide the others"
    healed = FailingNvml()
    healed.action[2] = 2  # NVML_GPU_RECOVERY_ACTION_NODE_REBOOT
    assert NvmlGpus(healed).health().conditions == {"GPU-2": "the driver asks for a reboot of the machine"}


def test_faults_of_xids_survive_the_agent_and_end_with_a_reboot(tmp_path):
    path = tmp_path / "gpu_faults.json"
    faults = GpuFaults(path, "boot")
    for xid in (13, 31, 43, 45, 63, 94):
        faults.add("GPU-0", xid)
    assert faults.texts == {} and not path.exists()
    faults.add("GPU-0", 79)
    faults.add("GPU-1", 95)
    assert GpuFaults(path, "boot").texts == faults.texts
    assert faults.texts["GPU-1"] == "Xid 95: an uncontained memory error"
    faults.heal("GPU-1")
    assert GpuFaults(path, "boot").texts == {"GPU-0": "Xid 79: the GPU has fallen off the bus"}
    assert GpuFaults(path, "another boot").texts == {}
    path.write_text("[")
    assert GpuFaults(path, "boot").texts == {}


def test_a_fault_that_cannot_be_stored_still_counts(tmp_path, caplog):
    faults = GpuFaults(tmp_path / "missing" / "gpu_faults.json", "boot")
    faults.add("GPU-0", 79)
    assert faults.texts == {"GPU-0": "Xid 79: the GPU has fallen off the bus"} and "could not be stored" in caplog.text
    faults.heal("GPU-0")
    assert faults.texts == {}
