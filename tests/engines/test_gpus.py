"""Flags, simulated GPUs and real ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from corral.errors import Refused
from corral.node.gpus import MODELS, GpusFlag, NoGpus, SimulatedGpus, detect, parse_gpus_flag
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
def test_flags(text, flag):
    assert parse_gpus_flag(text) == flag


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "not one of"),
        ("all", "not one of"),
        ("sim", "not one of"),
        ("sim:", "not one of"),
        ("sim:x", "not one of"),
        ("sim:-1", "not one of"),
        ("sim:2x", "not one of"),
        ("sim:2 xH200", "not one of"),
        ("sim:0", "from 1 to 64"),
        ("sim:65", "from 1 to 64"),
        ("sim:2xH2000", "there are B200, H200, H100"),
    ],
)
def test_wrong_flags(text, says):
    with pytest.raises(Refused, match=says):
        parse_gpus_flag(text)


def test_simulated_ones_keep_their_names():
    first, again, other = detect("sim:2xT4", "host"), detect("sim:2xT4", "host"), detect("sim:2xT4", "other")
    assert first.devices() == again.devices()
    assert not {gpu.gpu_id for gpu in first.devices()} & {gpu.gpu_id for gpu in other.devices()}
    assert [(gpu.index, gpu.model, gpu.memory_mib) for gpu in first.devices()] == [
        (0, "Tesla T4", 15_360),
        (1, "Tesla T4", 15_360),
    ]
    assert all(memory_mib > 1024 for _, memory_mib in MODELS.values())


def test_none():
    assert detect("none", "host").devices() == []


def test_busy_as_the_processes_pinned_to_them():
    gpus = SimulatedGpus("host", 3, "H100")
    a, b, c = (gpu.gpu_id for gpu in gpus.devices())
    busy = subprocess.Popen([sys.executable, "-c", "x = b'x' * 50_000_000\nwhile True: pass"], start_new_session=True)
    try:
        assert gpus.sample({}) == gpus.sample({c: []})
        shares = {a: [busy.pid], b: [busy.pid]}  # one core, two GPUs: half each
        first, second, _ = eventually(lambda: _if_busy(gpus.sample(shares)), "both busy")
        assert first.utilization_percent == second.utilization_percent
        assert first.memory_used_mib == second.memory_used_mib
        eventually(lambda: gpus.sample({a: [busy.pid]})[0].utilization_percent > 50, "busy")
        eventually(lambda: gpus.sample({a: [busy.pid]})[0].memory_used_mib > 40, "has its memory")
        sample = {sample.gpu_id: sample for sample in gpus.sample({a: [busy.pid]})}
        assert (sample[b].utilization_percent, sample[c].memory_used_mib) == (0, 0)
    finally:
        busy.kill()
        busy.wait()
    assert gpus.sample({a: [busy.pid]})[0].utilization_percent == 0


def _if_busy(samples):
    return samples if samples[0].utilization_percent > 0 else None


def test_without_a_driver_it_says_so_and_what_to_do():
    gpus = detect("auto", "host")
    if not isinstance(gpus, NoGpus):
        pytest.skip("this machine has NVIDIA GPUs")
    assert gpus.devices() == [] and gpus.sample({}) == []
    assert "NVIDIA driver" in gpus.note and "--gpus sim:8" in gpus.note


@pytest.mark.gpu
def test_real_ones():
    gpus = detect("auto", "host")
    if isinstance(gpus, NoGpus):
        pytest.skip("no NVIDIA GPU on this machine")
    for device, sample in zip(gpus.devices(), gpus.sample({}), strict=True):
        assert device.gpu_id == sample.gpu_id and device.gpu_id.startswith("GPU-") and not device.simulated
        assert device.memory_mib > 1024 and device.model
        assert 0 <= sample.utilization_percent <= 100
        assert 0 <= sample.memory_used_mib <= device.memory_mib
        assert sample.temperature_c is None or 0 < sample.temperature_c < 120
