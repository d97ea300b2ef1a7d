"""The pause program: it carries out one order to pause or continue one run, and then exits.

    python -m corral.node.pause_program --dir <data>/node --run RUN_ID

The agent starts it in a session of its own. It calls the NVIDIA driver, whose calls may hang: so neither the agent nor the spawner
makes them. Everything that it does is recorded in the mark of the run (`pause_marks.py`).
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

from corral.node.gpu_states import DriverError, GpuStates, NoGpuStates
from corral.node.pause_marks import PauseMark, PauseMarks
from corral.node.run_freezer import PausableRun, process_run
from corral.node.run_pause import RunPauser, Withdrawn
from corral.process.log_times import add_times_to_output
from corral.process.option_pairs import option_pairs


def main(arguments: list[str] | None = None) -> int:
    options = option_pairs(sys.argv[1:] if arguments is None else arguments, ("dir", "run"))
    data, run_id = Path(options["dir"]).resolve(), options["run"]
    add_times_to_output()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    marks = PauseMarks(data)
    if marks.read(run_id) is None:
        return 0  # the run is being stopped
    lock = marks.hold_program(run_id)  # held until this process ends
    mark = marks.read(run_id)
    if lock is None or mark is None or mark.is_done:
        return 0
    try:
        carry_out(data, marks, mark)
    except Withdrawn:
        pass
    except Exception:
        print(f"the pause of {run_id}: {traceback.format_exc()}", file=sys.stderr, flush=True)
        return 1
    finally:
        os.close(lock)
    return 0


def carry_out(data: Path, marks: PauseMarks, mark: PauseMark) -> None:
    run = find_run(data, mark)
    if run is None:
        raise Withdrawn
    try:
        gpus = gpu_states(mark.gpus, data)
    except DriverError as why:  # nothing has been done: only a driver that worked before can have done something
        marks.update(mark.but(is_done=True, why_not=str(why)))
        return
    RunPauser(marks, mark, run, gpus).carry_out()


def gpu_states(kind: str, data: Path) -> GpuStates:
    """Return the states for a kind of GPUs: real, simulated or none. Raises DriverError if the driver cannot be used."""
    if kind == "real":
        from corral.node.nvidia_gpu_states import NvidiaGpuStates, ignore_cuda_variables  # other runs do not need it

        ignore_cuda_variables()
        return NvidiaGpuStates()
    if kind == "simulated":
        from corral.node.simulated_gpu_states import SimulatedGpuStates

        return SimulatedGpuStates(data)
    return NoGpuStates()


def find_run(data: Path, mark: PauseMark) -> PausableRun | None:
    if mark.container:
        from corral.node.container_freezer import ContainerRun  # imported here because pauses of processes do not need it

        return ContainerRun(mark.engine, mark.container)
    return process_run(data, mark.run_id, mark.sessions, mark.others)


if __name__ == "__main__":
    sys.exit(main())
