"""The spawner: the parent process of all runs on this host that are processes. It outlives the agent.

    python -m corral.node.spawner --dir <data>/node

The spawner starts and stops the processes of runs, and collects their exit codes. It writes every change to a journal before it
reports the change to the agent. If the disk is full, it writes the change later. It has one thread with one loop. The loop never
waits for a run: starting a process takes a third of a millisecond, and everything else uses timers. A run of another Unix account
starts in a child that the spawner forks (`account_start.py`). The spawner imports few modules and needs little memory, because
every host with an agent also has a spawner. A child process of the spawner pauses runs that print too fast (`output_guard.py`).

The steps of a run: write the run to the journal → start its main process, with a lock on the output file that only processes of the
run hold → when the main process ends, kill the rest of its process group and write the exit code to the journal → when no process
of the run is left, report the run as ended → when the server has acknowledged the end, forget the run and remove its files. The
GPUs of a run that is reported as ended are free, because none of its processes is left (`run_remains.py`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

from corral.core.clock import Clock, WallClock
from corral.core.errors import Refused
from corral.model.run_signals import SIGNALS
from corral.model.stop_reasons import ALLOCATION_OVER, FENCED, OUT_OF_MEMORY, STOPPED_BEFORE_START
from corral.node import node_folder, process_launch, procfs, run_cgroups
from corral.node.account_folders import cache_of
from corral.node.fences import FencedContainer, Fences
from corral.node.host import kernel_boot_id
from corral.node.kept_sockets import KeptSockets
from corral.node.output_guard import GuardProcess
from corral.node.pending_starts import PendingStart, PendingStarts
from corral.node.procfs import boot_s
from corral.node.run_cgroups import RunCgroups, open_cgroups
from corral.node.run_files import RunFiles
from corral.node.run_journal import RUN_ID, Replay, RunJournal, replay
from corral.node.run_processes import is_same_process, process_started_boot_s
from corral.node.run_remains import RunRemains
from corral.node.spawner_cgroups import SpawnerCgroups
from corral.node.spawner_clients import SpawnerClients
from corral.node.spawner_pauses import SpawnerPauses
from corral.node.spawner_protocol import Launch, SpawnedRun, launch_from
from corral.node.spawner_recovery import EXIT_STATUS_LOST, MainProcessWatch, find_orphans, find_unfinished, with_main_process
from corral.node.spawner_timers import Timers
from corral.process.log_times import add_times_to_output
from corral.process.option_pairs import option_pairs

STARTS_PER_TURN = 32  # maximum number of starts per turn of the loop, so that exits, stops and timers do not wait for many starts
IDLE_S = 120.0  # the spawner exits after this time without a living run and without a client; the next agent starts a new one
JOURNAL_RETRY_S = 1.0
CPU_SHARE_S = 0.2  # a run gets its CPU share after this time, because shorter runs do not need one
GUARD_RESTART_S, BAD_TURN_S = 1.0, 0.05
KILLED_BEFORE_START = "CannotStartContainerError: the process was killed before it executed the program"


class Spawner:
    def __init__(
        self, data: Path, boot_id: str, clock: Clock, cgroups: RunCgroups | None = None, held_by: int | None = None
    ) -> None:
        """`held_by` is the descriptor of the hold on the allocation of this host (`hold.py`)."""
        self._data = data
        self._clock = clock
        self._runs: dict[str, SpawnedRun] = {}
        self._by_pid: dict[int, str] = {}  # pid → run id, for main processes that this spawner started and has not waited for
        self._cgroups = SpawnerCgroups(cgroups, self._runs)
        self._mark = f"{data}/starting"
        self._mark_fd = os.open(self._mark, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._timers = Timers()
        self._at = self._timers.at
        self._poll = select.epoll()
        self._watch = MainProcessWatch(self._poll, self._at, self._status_lost)
        self._pending = PendingStarts(self._poll)
        self._clients = SpawnerClients(self._poll, self._runs, self._execute)
        self._alive = 0
        self._starts: deque[Launch] = deque()
        self._folder = node_folder.HeldPath(data)
        self._is_checking = False  # whether a timer of `_check_folder` is set
        self._quitting = False
        self._held_by = held_by
        self._is_released = False  # the allocation of this host is over
        self._no_run_since_boot_s = boot_s()
        self._guard = GuardProcess(data)
        self._pauses = SpawnerPauses(data, self._at)
        self._fences = Fences(data, self._at, self._fenced, self._pauses.end_container)
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._journal = RunJournal(data / "journal", boot_id)
        left = replay(data / "journal", boot_id)
        self._files = RunFiles(data)
        self._remains = RunRemains(data, self._runs, self._files, self._cgroups, self._at, self._is_known_child, self._ended)
        self._recover(left, same_boot=left.boot_id == boot_id)
        self._remove_orphans()
        self._journal.rewrite(self._runs)
        self._start_number = 0
        os.utime(self._mark_fd, (0, 0))
        self._cgroups.remove_unused()

    # -- after a restart -----------------------------------------------------------------------------------------

    def _recover(self, left: Replay, *, same_boot: bool) -> None:
        """Handle every run whose end an earlier spawner did not record: continue to watch it, or report its end."""
        self._runs.update(left.runs)
        for unfinished in find_unfinished(left, self._data, self._mark_fd, self._clock, same_boot=same_boot):
            self._alive += 1
            if unfinished.has_ended:
                self._ended(unfinished.run)
            else:
                self._fences.add(unfinished.run.run_id, unfinished.run.fence_s)
                self._remains.adopted.add(unfinished.run.run_id)
                self._adopt(unfinished.run, unfinished.pids)

    def _adopt(self, run: SpawnedRun, found: list[int]) -> None:
        """Take over a run that has a living process.

        If its main process is alive, watch it. Otherwise kill the other processes of the run. The output guard of the dead spawner
        may have paused the run and then died, so the run is resumed, unless an order has paused it.
        """
        self._pauses.resume_unless_paused(run, found)
        if run.pid is None and found:
            run = self._runs[run.run_id] = with_main_process(run, found, self._clock)
        if run.main_ended_at_s is None and is_same_process(run):
            self._watch.add(run)
            if run.kill_at_boot_s is not None:
                self._at(run.kill_at_boot_s, lambda: self._kill(run.run_id))
        elif run.main_ended_at_s is None:
            self._status_lost(run.run_id)
        else:
            self._remains.kill_until_gone(run.run_id)

    def _remove_orphans(self) -> None:
        """Remove the files of runs that are not in the journal, because they were forgotten just before a crash.

        If the lock of such an output file is held, its run is alive, and someone has removed the journal. Take over the run,
        because its GPUs are in use.
        """
        alive, ended = find_orphans(self._data, self._runs.keys())
        for run, holders in alive:
            self._runs[run.run_id] = run.but(group=self._cgroups.group_of(holders))
            self._remains.adopted.add(run.run_id)
            self._alive += 1
            self._adopt(self._runs[run.run_id], holders)
        self._files.remove_unknown(ended, self._runs.keys())

    # -- the loop ------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._quit())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        kept = KeptSockets(self._data, self._poll)  # before an agent can connect, because it uses both
        server = node_folder.listen(self._data, "spawner.sock")
        if self._runs:
            self._guard.start()
        self._poll.register(wake_r, select.EPOLLIN)
        self._poll.register(server, select.EPOLLIN)
        if self._held_by is not None:
            os.set_inheritable(self._held_by, False)
            self._poll.register(self._held_by, select.EPOLLIN)
        self._reap()  # children that ended before the handler was installed
        while not self._is_done():
            try:
                for fd, _ in self._poll.poll(self._timeout_s()):
                    if fd == wake_r:
                        with contextlib.suppress(BlockingIOError):
                            os.read(wake_r, 4096)
                        self._reap()
                    elif fd == server.fileno():
                        if self._clients.accept(server.accept()[0]):
                            self._quitting = False  # a new client needs the spawner
                    elif fd in self._clients.by_fd:
                        self._clients.receive(self._clients.by_fd[fd])
                    elif fd in self._pending.by_fd:
                        self._check_pending(self._pending.by_fd[fd])
                    elif fd == self._held_by:
                        self._released(fd)
                    elif fd == kept.fileno():
                        kept.receive()
                    else:
                        self._watch.process_ended(fd)
                    self._journal.catch_up()
                self._start_some()
                self._reap()  # again, so that the start and the end of a short run are reported together
                self._timers.fire()
                if self._alive and not self._is_checking:
                    self._check_folder()
                self._journal.catch_up()
                self._clients.send_changes()
            except Exception:  # an error must not end the spawner, because the exit codes of all runs would be lost
                _log(traceback.format_exc())
                time.sleep(BAD_TURN_S)  # if the error occurs in every turn, do not use a whole CPU core
        if self._folder.is_same():  # otherwise the socket may belong to another spawner
            (self._data / "spawner.sock").unlink(missing_ok=True)
        self._guard.end()
        self._cgroups.close()
        self._files.close()

    def _timeout_s(self) -> float | None:
        if self._starts:
            return 0
        due = [] if self._timers.next_boot_s is None else [self._timers.next_boot_s]
        if not self._clients.by_fd and not self._alive:
            due.append(self._idle_since_boot_s() + IDLE_S)
        if self._journal.is_behind:
            due.append(boot_s() + JOURNAL_RETRY_S)
        return max(0.0, min(due) - boot_s()) if due else None

    def _is_done(self) -> bool:
        is_used = self._clients.by_fd or boot_s() < self._idle_since_boot_s() + IDLE_S
        return not (self._alive or self._starts or self._fences.containers) and (self._quitting or not is_used)

    def _idle_since_boot_s(self) -> float:
        return max(self._no_run_since_boot_s, self._clients.closed_at_boot_s)

    def _quit(self) -> None:
        self._quitting = True

    def _released(self, fd: int) -> None:
        """Kill all runs at once, and start no more: the allocation of this host is over, and others may get its GPUs."""
        self._poll.unregister(fd)
        self._is_released = True
        for run in [run for run in self._runs.values() if run.alive]:
            if run.pid is None:
                self._end_unstarted(run, ALLOCATION_OVER)
            elif run.main_ended_at_s is None:
                self._put(run.but(kill_at_boot_s=boot_s(), reason=ALLOCATION_OVER))
                self._pauses.stop(run)
                self._signal(run, signal.SIGKILL)

    def _check_folder(self) -> None:
        """If the data folder was deleted or replaced while runs are alive, end them and exit. No process could find them there."""
        self._is_checking = bool(self._alive)
        if self._alive and self._folder.is_gone():
            self._quitting = True
            for run_id in [run_id for run_id, run in self._runs.items() if run.alive]:
                self._stop(run_id)
                self._at(boot_s() + node_folder.GONE_GRACE_S, partial(self._kill, run_id))
        elif self._alive:
            self._at(boot_s() + node_folder.GONE_CHECK_S, self._check_folder)

    # -- the agent -----------------------------------------------------------------------------------------------

    def _execute(self, messages: list[Any]) -> bytes:
        """Execute messages of an agent. Return the response."""
        reply = b""
        for message in messages:
            match message:
                case {"start": {"run_id": str() as run_id} as launch}:
                    self._order(launch_from(run_id, launch))
                case {"answered": float() as sent_boot_s}:
                    self._fences.answered(sent_boot_s)
                case {"fence": dict() as fenced}:
                    self._fences.add_container(FencedContainer(**fenced))
                case {"unfence": list() as run_ids}:
                    for run_id in run_ids:
                        self._fences.remove(run_id)
                case {"ping": _}:
                    reply = b'{"pong":true}\n'
                case {"stop": str() as run_id}:
                    self._stop(run_id)
                case {"signal": str() as name, "run": str() as run_id}:
                    self._send_signal(run_id, name)
                case {"forget": list() as run_ids}:
                    self._forget(run_ids)
                case {"quit": _}:
                    self._quit()
                case _:
                    _log(f"unknown message: {str(message)[:200]}")
        self._journal.catch_up()
        return reply

    # -- starting ------------------------------------------------------------------------------------------------

    def _order(self, launch: Launch) -> None:
        if launch.run_id in self._runs:
            self._clients.changed[launch.run_id] = None  # the agent may have missed the report, so send it again
            return
        if not RUN_ID.fullmatch(launch.run_id):
            _log(f"not a run id: {launch.run_id[:200]!r}")
            return
        self._runs[launch.run_id] = SpawnedRun(
            launch.run_id, launch.stop_grace_s, launch.ships_logs, launch.gpu_ids, fence_s=launch.fence_s, account=launch.account
        )
        self._fences.add(launch.run_id, launch.fence_s)
        self._alive += 1
        if self._alive == 1:
            self._guard.wake()
        self._starts.append(launch)

    def _start_some(self) -> None:
        for _ in range(min(STARTS_PER_TURN, len(self._starts))):
            launch = self._starts.popleft()
            run = self._runs[launch.run_id]
            if run.alive:
                try:
                    self._put(self._start(launch, run))
                except process_launch.CannotSpawn as why:
                    self._ended(self._runs[launch.run_id].but(reason=str(why)))
                except Exception as error:  # an error in one launch must fail only its own run
                    _log(traceback.format_exc())
                    self._ended(self._runs[launch.run_id].but(reason=f"CannotStartContainerError: {error}"))
        self._cgroups.leave()
        if not self._starts:
            os.fchdir(self._folder.fd)  # the working directory of the spawner must not stay in the folder of the last run
            self._files.recycler.move_to_spare()

    def _start(self, launch: Launch, run: SpawnedRun) -> SpawnedRun:
        """Start a run. Write it to the journal first, so that a run that may have been started is never started again."""
        if launch.fault is not None or self._is_released:
            raise process_launch.CannotSpawn(launch.fault or ALLOCATION_OVER)
        group = self._cgroups.reserve()
        self._start_number += 1
        run = self._runs[run.run_id] = run.but(group=group, start_number=self._start_number)
        if not self._journal.put(run):
            raise process_launch.CannotSpawn("CannotStartContainerError: the journal cannot be written; is the disk full?")
        os.utime(self._mark_fd, (self._start_number, 0))
        output = self._files.open_output(launch)
        try:
            directory = self._files.directory(launch)
            run = self._cgroups.enter(run)
            before_boot_s, now_s = boot_s(), self._clock.now_s()
            if launch.account:
                pid, pipe = self._fork(launch, directory, output)
                self._pending.add(PendingStart(run.run_id, pid, pipe, now_s, before_boot_s))
            else:
                pid = process_launch.spawn(launch, directory, output, self._null, self._mark)
        finally:
            os.close(output)  # after this, only processes of the run hold the lock
        since_boot_s = process_started_boot_s(pid, before_boot_s)
        self._by_pid[pid] = run.run_id
        if run.group is not None:
            self._cgroups.limit_later(launch)
            self._at(since_boot_s + CPU_SHARE_S, lambda: self._cgroups.share_cpu(run.run_id, launch.cpu_units))
        return run if launch.account else run.but(pid=pid, started_at_s=now_s, started_boot_s=since_boot_s)

    def _fork(self, launch: Launch, directory: str, output: int) -> tuple[int, int]:
        from corral.node.account_start import fork_as  # imported here, because most spawners never need it

        work = directory if launch.working_directory is None else None
        try:
            return fork_as(launch, work, cache_of(self._data, launch.account), output, self._null, self._mark)
        except OSError as error:
            raise process_launch.CannotSpawn(f"CannotStartContainerError: {error}") from None

    def _check_pending(self, start: PendingStart, *, has_ended: bool = False) -> str | None:
        """If the start of a run of another account is complete, or its child `has_ended`, store the start of the run.

        Return why the program was not executed, or None.
        """
        result = start.result()
        if result is None:
            return None
        if result.uid is not None and not result.why:
            self._pending.remove(start)
            self._put(
                self._runs[start.run_id].but(
                    pid=start.pid, uid=result.uid, started_at_s=start.started_at_s, started_boot_s=start.started_boot_s
                )
            )
        elif has_ended:  # otherwise the child ends now, and `_reap` calls this method again
            self._pending.remove(start)
            return result.why or start.stop_reason or KILLED_BEFORE_START
        return None

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is None or not run.alive or run.main_ended_at_s is not None or run.kill_at_boot_s is not None:
            return
        if (start := self._pending.by_run.get(run_id)) is not None:
            self._check_pending(start)
            run = self._runs[run_id]
        if run.pid is None:
            self._end_unstarted(run, STOPPED_BEFORE_START)
            return
        self._put(run.but(kill_at_boot_s=boot_s() + run.stop_grace_s))
        self._pauses.stop(run)
        self._signal(run, signal.SIGTERM)
        self._signal(run, signal.SIGCONT)  # the output guard may have paused the run
        self._at(boot_s() + run.stop_grace_s, lambda: self._kill(run_id))

    def _end_unstarted(self, run: SpawnedRun, reason: str) -> None:
        """End a run that has no process yet, or whose process has not executed the program of the run."""
        start = self._pending.by_run.get(run.run_id)
        if start is None:
            self._ended(run.but(reason=reason))  # the start is still queued; `_start_some` skips ended runs
        else:
            start.stop_reason = reason
            os.kill(start.pid, signal.SIGKILL)  # `_reap` has not waited for it yet

    def _fenced(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is not None and run.alive and run.main_ended_at_s is None and run.kill_at_boot_s is None:
            self._runs[run_id] = run.but(reason=FENCED)
            self._stop(run_id)

    def _send_signal(self, run_id: str, name: str) -> None:
        run = self._runs.get(run_id)
        if name not in SIGNALS:
            _log(f"unknown signal: {name[:200]!r}")
        elif run is not None and run.alive and run.pid is not None and run.main_ended_at_s is None:
            self._signal(run, signal.Signals[name])

    def _kill(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is not None and run.main_ended_at_s is None and run.alive:
            self._signal(run, signal.SIGKILL)

    def _signal(self, run: SpawnedRun, number: signal.Signals) -> None:
        """Send a signal to the whole process group.

        The pid cannot have been reused: the spawner has not waited for the leader of the group yet, or `is_same_process` compares
        the start time of the leader.
        """
        assert run.pid is not None
        if run.pid in self._by_pid or is_same_process(run):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(run.pid, number)

    # -- ending --------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Wait for ended child processes. Kill the process group before its leader is waited for: then the pid may be reused."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            run_id = self._by_pid.pop(ended.si_pid, None)
            if run_id is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if run_id is not None:
                start = self._pending.by_run.get(run_id)
                why = None if start is None else self._check_pending(start, has_ended=True)
                if why is None:
                    self._main_ended(run_id, process_launch.exit_code(status), None)
                else:
                    self._ended(self._runs[run_id].but(reason=why))
            elif ended.si_pid == self._files.recycler.pid:
                self._files.recycler.child_ended()
            elif ended.si_pid == self._guard.pid:
                self._guard.died(self._runs.values(), self._pauses.resume_unless_paused)
                self._at(boot_s() + GUARD_RESTART_S, self._guard.start)

    def _status_lost(self, run_id: str) -> None:
        self._main_ended(run_id, None, EXIT_STATUS_LOST)

    def _main_ended(self, run_id: str, exit_code: int | None, reason: str | None) -> None:
        run = self._runs[run_id]
        reason = reason or run.reason
        if reason is None and exit_code and self._cgroups.ran_out_of_memory(run):
            reason = OUT_OF_MEMORY
        run = run.but(main_ended_at_s=self._clock.now_s(), exit_code=exit_code, reason=reason)
        if self._remains.kill(run):
            self._put(run)
            self._remains.kill_until_gone(run_id)
        else:
            self._ended(run)

    def _is_known_child(self, pid: int) -> bool:
        return pid in self._by_pid or pid in (self._files.recycler.pid, self._guard.pid)

    def _ended(self, run: SpawnedRun) -> None:
        self._alive -= 1
        if not self._alive:
            self._no_run_since_boot_s = boot_s()
        self._pauses.ended(run)
        self._cgroups.release(run)
        self._fences.remove(run.run_id)
        self._remains.adopted.discard(run.run_id)
        self._put(run.but(stopped_at_s=self._clock.now_s(), group=None))

    def _put(self, run: SpawnedRun) -> None:
        """Store the run, and queue it for the journal and the clients. The journal is written first."""
        self._runs[run.run_id] = run
        self._clients.changed[run.run_id] = None
        self._journal.put_later(run)

    # -- forgetting ----------------------------------------------------------------------------------------------

    def _forget(self, run_ids: list[str]) -> None:
        """Forget ended runs: write this to the journal first, then remove their files.

        If the spawner crashes between these steps, the next spawner removes the files.
        """
        ended = [run_id for run_id in run_ids if run_id in self._runs and not self._runs[run_id].alive]
        if not ended:
            return
        self._journal.forget(ended)
        for run_id in ended:
            del self._runs[run_id]
        self._files.remove(ended)
        if self._journal.needs_rewrite:
            try:
                self._journal.rewrite(self._runs)
            except OSError as error:
                _log(f"cannot rewrite the journal: {error}")


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = option_pairs(sys.argv[1:] if arguments is None else arguments, ("dir", "boot-id", "cgroup-root", "held-by"))
    data = Path(options["dir"]).resolve()
    add_times_to_output()
    node_folder.make(data)
    lock = node_folder.try_lock(data / "spawner.lock")  # held until this process ends
    if lock is None:
        _log(f"another spawner is running in {data}")
        return 0
    os.chdir(data)
    procfs.become_subreaper()
    # Collect garbage seldom: this process creates no reference cycles, and a collection is slow with thousands of objects.
    gc.set_threshold(50_000)
    try:
        cgroups = open_cgroups(data, options.get("cgroup-root", run_cgroups.ROOT))
        held_by = int(options["held-by"]) if "held-by" in options else None
        spawner = Spawner(data, options.get("boot-id") or kernel_boot_id(), WallClock(), cgroups, held_by)
    except Refused as why:
        _log(f"refused: {why}")
        return 2
    spawner.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
