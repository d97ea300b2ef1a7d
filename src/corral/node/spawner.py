"""The spawner: the parent process of all runs on this host that are processes. It outlives the agent.

    python -m corral.node.spawner --dir <data>/node

A run is one container of a task on this host. The spawner starts and stops the processes of runs, and collects their exit codes. It
writes every change to a journal before it reports the change to the agent. It has one thread with one loop, in which nothing
blocks: starting a process takes a third of a millisecond, and everything else uses timers. It imports few modules and needs little
memory, because a spawner runs on every host all the time. A child process pauses runs that print too fast
(`output_guard.py`).

The steps of a run: write the run to the journal → start its main process, with a lock on the output file that only processes of the
run hold → when the main process ends, kill the rest of its process group and write the exit code to the journal → when no process
of the run is left, report the run as ended. So the GPUs of an ended run are free.

The spawner finds all processes of a run by the cgroup of the run (`run_cgroups.py`). Without cgroups, it finds them by the lock, or
by the id of the run in their environment. For the second method it examines only its own children: a process whose parent has ended
becomes a child of the spawner.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from getopt import getopt
from pathlib import Path
from typing import Any

import orjson

from corral.clock import Clock, WallClock
from corral.errors import Refused
from corral.model.stop_reasons import HOST_RESTARTED, OUT_OF_MEMORY, STOPPED_BEFORE_START
from corral.node import lock_files, node_folder, process_launch, procfs, run_cgroups
from corral.node.file_recycler import FileRecycler
from corral.node.host import kernel_boot_id
from corral.node.output_guard import fork_guard
from corral.node.run_cgroups import RunCgroups, open_cgroups
from corral.node.run_journal import RUN_ID, Replay, RunJournal, replay
from corral.node.run_processes import find_processes, is_same_process, main_process, resume
from corral.node.spawner_protocol import RUN_VARIABLE, Launch, SpawnedRun, SpawnerClient, run_mark

STARTS_PER_TURN = 16  # maximum number of starts per turn of the loop, so that exits, stops and timers do not wait for many starts
RUNS_PER_MESSAGE = 1_000
CLIENTS_MAX = 8
IDLE_S = 120.0  # the spawner exits after this time without a living run and without a client; the next agent starts a new one
LINGER_FIRST_S = 0.001  # the first delay until the lock of a run is checked again; each further delay is twice as long
LINGER_MAX_S = 1.0
LINGER_KILL_S = 0.004  # when the delay has reached this value, find the holders of the lock in /proc and kill them
JOURNAL_RETRY_S = 1.0
CPU_SHARE_S = 0.2  # a run gets its CPU share after this time, because shorter runs do not need one
GUARD_RESTART_S = 1.0
STOP_GRACE_S = 30.0  # the grace period of a run that is not in the journal
BAD_TURN_S = 0.05
PONG = b'{"pong":true}\n'

EXIT_STATUS_LOST = "the exit status was lost: the spawner died while the run was alive"
MAY_HAVE_RUN = "the exit status was lost: the spawner died while it started the run, which may have run"
NEVER_STARTED = "CannotStartContainerError: never started: the spawner died while starting it"


def boot_s() -> float:
    """Return the time since boot, including suspended time. All timers use it.

    It stays valid for a later spawner of the same boot.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Spawner:
    def __init__(self, data: Path, boot_id: str, clock: Clock, cgroups: RunCgroups | None = None) -> None:
        self._data = data
        self._clock = clock
        self._runs: dict[str, SpawnedRun] = {}
        self._by_pid: dict[int, str] = {}  # pid → run id, for child processes that have not been waited for
        self._watched: dict[str, int] = {}  # run id → pidfd of the main process, for runs of an earlier spawner
        self._adopted: set[str] = set()  # ids of runs of an earlier spawner; their processes are not descendants of this process
        self._cgroups = cgroups
        self._inside: str | None = None  # id of the run in whose cgroup the spawner currently is
        self._unlimited: tuple[str, Launch] | None = None  # the last started run, until its memory limit is set
        # Ids of runs that were killed because they exceeded their memory limit before it was set.
        self._over_limit: set[str] = set()
        self._children = procfs.OwnChildren()
        self._mark = str(data / "starting")
        self._mark_fd = os.open(self._mark, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._alive = 0
        self._starts: deque[Launch] = deque()
        self._changed: dict[str, None] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._clients: dict[int, SpawnerClient] = {}
        self._quitting = False
        self._idle_since = boot_s()
        self._guard_pid: int | None = None  # the process that bounds output
        self._guard_pipe = -1
        self._guard_died_before = False  # True: a timer starts the next one
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._home = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._journal = RunJournal(data / "journal", boot_id)
        left = replay(data / "journal", boot_id)
        self._poll = select.epoll()
        self._recycler = FileRecycler(str(data))
        self._recover(left, same_boot=left.boot_id == boot_id)
        self._remove_orphans()
        self._journal.rewrite(self._runs)
        if cgroups is not None:
            cgroups.remove_unused({run.group for run in self._runs.values() if run.group is not None})

    # -- after a restart -----------------------------------------------------------------------------------------

    def _recover(self, left: Replay, *, same_boot: bool) -> None:
        """Handle every run whose end an earlier spawner did not record: continue to watch it, or report its end."""
        unfinished = [run for run in left.runs.values() if run.alive]
        self._adopted = {run.run_id for run in unfinished} if same_boot else set()
        starting = [run for run in unfinished if run.pid is None]
        found = find_processes(self._data, {self._output(run.run_id): run for run in unfinished}) if same_boot else {}
        held = {run.run_id for run in unfinished if found.get(run.run_id) or lock_files.is_held(self._output(run.run_id))}
        for run in left.runs.values():
            self._runs[run.run_id] = run
            if not run.alive:
                continue
            self._alive += 1
            if not same_boot:
                self._ended(run.but(reason=run.reason or HOST_RESTARTED))
            elif run.run_id in held:
                self._adopt(run, found.get(run.run_id, []))
            elif run.pid is None:
                self._ended(self._lost_at_start(run, alone=len(starting) == 1))
            elif run.main_ended_at_s is None:
                self._ended(run.but(reason=EXIT_STATUS_LOST))
            else:
                self._ended(run)

    def _lost_at_start(self, run: SpawnedRun, *, alone: bool) -> SpawnedRun:
        """Decide how to report a run that a dead spawner was about to start, and that has no process now.

        The modification time of the file `starting` shows whether its process was started.
        """
        started_ns = os.fstat(self._mark_fd).st_mtime_ns
        if started_ns:
            return run.but(started_at_s=started_ns / 1e9, reason=EXIT_STATUS_LOST)
        if alone:
            return run.but(reason=NEVER_STARTED)
        # Several runs have no pid, because the journal could not be written for some time.
        return run.but(started_at_s=self._clock.now_s(), reason=MAY_HAVE_RUN)

    def _adopt(self, run: SpawnedRun, found: list[int]) -> None:
        """Take over a run that has a living process. Watch its main process if that is alive.

        Otherwise kill the other processes. The output guard of the spawner that died may have died with it, so the run is resumed.
        """
        resume(run, found)
        if run.pid is None and found:  # the spawner died after it started the process and before it wrote the pid to the journal
            pid = main_process(found)
            since = procfs.started_boot_s(pid)
            now_s = self._clock.now_s()
            started_at_s = now_s if since is None else now_s - (boot_s() - since)
            run = run.but(pid=pid, started_at_s=started_at_s, started_boot_s=since)
            self._runs[run.run_id] = run
        if run.main_ended_at_s is None and is_same_process(run):
            self._watch(run)
            if run.kill_at_boot_s is not None:
                self._at(run.kill_at_boot_s, lambda: self._kill(run.run_id))
        elif run.main_ended_at_s is None:
            self._main_ended(run.run_id, None, EXIT_STATUS_LOST)
        else:
            self._linger(run.run_id, LINGER_FIRST_S)

    def _watch(self, run: SpawnedRun) -> None:
        assert run.pid is not None
        try:
            fd = os.pidfd_open(run.pid)
            self._watched[run.run_id] = fd
            self._poll.register(fd, select.EPOLLIN)
        except ProcessLookupError:
            self._main_ended(run.run_id, None, EXIT_STATUS_LOST)
        except OSError:  # too many files are open, so check the process regularly instead
            self._at(boot_s() + LINGER_MAX_S, lambda: self._poll_main_process(run.run_id))

    def _poll_main_process(self, run_id: str) -> None:
        run = self._runs[run_id]
        if is_same_process(run):
            self._at(boot_s() + LINGER_MAX_S, lambda: self._poll_main_process(run_id))
        else:
            self._main_ended(run_id, None, EXIT_STATUS_LOST)

    def _remove_orphans(self) -> None:
        """Remove the files of runs that were forgotten just before a crash.

        If the lock of such a run is held, the run is alive, and someone has removed the journal. Take over the run, because its
        GPUs are in use.
        """
        left = {*os.listdir(self._data / "output"), *os.listdir(self._data / "work")} - self._runs.keys()
        alive = [name for name in left if lock_files.is_held(self._output(name))]
        found = lock_files.holders([self._output(name) for name in alive]) if alive else {}
        for name in left:
            if name in alive:
                holders = found.get(self._output(name), [])
                group = self._cgroups.group_of(holders[0]) if self._cgroups is not None and holders else None
                self._runs[name] = SpawnedRun(name, STOP_GRACE_S, ships_logs=True, gpu_ids=[], group=group)
                self._adopted.add(name)
                self._alive += 1
                self._adopt(self._runs[name], holders)
            else:
                self._remove_files(name)
        self._recycler.remove_trash()

    # -- the loop ------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._quit())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        server = node_folder.listen(self._data, "spawner.sock")
        if self._runs:
            self._start_guard()
        self._poll.register(wake_r, select.EPOLLIN)
        self._poll.register(server, select.EPOLLIN)
        self._reap()  # children that ended before the handler was installed
        while not self._is_done():
            try:
                for fd, _ in self._poll.poll(self._timeout_s()):
                    if fd == wake_r:
                        with contextlib.suppress(BlockingIOError):
                            os.read(wake_r, 4096)
                        self._reap()
                    elif fd == server.fileno():
                        self._accept(server.accept()[0])
                    elif fd in self._clients:
                        self._receive(self._clients[fd])
                    else:
                        self._watched_ended(fd)
                self._start_some()
                self._fire_timers()
                self._send_changes()
            except Exception:  # an error must not end the spawner, because the exit codes of all runs would be lost
                _log(traceback.format_exc())
                time.sleep(BAD_TURN_S)  # if the error occurs in every turn, do not use a whole CPU core
        (self._data / "spawner.sock").unlink(missing_ok=True)
        self._end_guard()
        if self._cgroups is not None:
            self._cgroups.close()

    def _timeout_s(self) -> float | None:
        if self._starts:
            return 0
        due_s = self._timers[0][0] if self._timers else None
        if not self._clients and not self._alive:
            idle_s = self._idle_since + IDLE_S
            due_s = idle_s if due_s is None else min(due_s, idle_s)
        return None if due_s is None else max(0.0, due_s - boot_s())

    def _is_done(self) -> bool:
        if self._alive or self._starts:
            return False
        return self._quitting or (not self._clients and boot_s() >= self._idle_since + IDLE_S)

    def _quit(self) -> None:
        self._quitting = True

    def _at(self, due_boot_s: float, what: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (due_boot_s, self._timer_count, what))

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0][0] <= boot_s():
            heapq.heappop(self._timers)[2]()

    # -- the agent -----------------------------------------------------------------------------------------------

    def _accept(self, connection: socket.socket) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            connection.close()
            return
        self._process_unread()
        client = SpawnerClient(connection)
        self._clients[connection.fileno()] = client
        self._poll.register(connection, select.EPOLLIN)
        self._quitting = False  # a new client needs the spawner
        runs = list(self._runs.values())
        for i in range(0, len(runs) + 1, RUNS_PER_MESSAGE):
            part = runs[i : i + RUNS_PER_MESSAGE]
            self._send(client, orjson.dumps({"runs": part, "all": i + RUNS_PER_MESSAGE > len(runs)}) + b"\n")

    def _process_unread(self) -> None:
        """Process the unread messages of all clients before the state is sent to a new client.

        Otherwise the last orders of a dead agent could start a run after the new agent has reported to the core that this run does
        not exist.
        """
        for client in list(self._clients.values()):
            self._receive(client)
            while not client.broken and not client.dry:
                self._receive(client)

    def _receive(self, client: SpawnerClient) -> None:
        reply = b""
        for message in client.receive():
            match message:
                case {"start": {"run_id": str() as run_id} as launch}:
                    self._order(_launch(run_id, launch))
                case {"ping": _}:
                    reply = PONG
                case {"stop": str() as run_id}:
                    self._stop(run_id)
                case {"forget": list() as run_ids}:
                    self._forget(run_ids)
                case {"quit": _}:
                    self._quit()
                case _:
                    _log(f"unknown message: {str(message)[:200]}")
        self._send(client, reply)

    def _send(self, client: SpawnerClient, data: bytes) -> None:
        client.send(data)
        if client.broken:
            self._poll.unregister(client.fileno())
            del self._clients[client.fileno()]
            client.close()
            self._idle_since = boot_s()
        else:
            wants = select.EPOLLIN | (select.EPOLLOUT if client.behind else 0)
            if wants != client.polled:
                self._poll.modify(client.fileno(), wants)
                client.polled = wants

    def _send_changes(self) -> None:
        """Send all changes of this turn in one message."""
        if not self._changed:
            return
        changed = [self._runs[run_id] for run_id in self._changed if run_id in self._runs]
        self._changed.clear()
        line = orjson.dumps({"runs": changed, "all": False}) + b"\n"
        for client in list(self._clients.values()):
            self._send(client, line)

    # -- starting ------------------------------------------------------------------------------------------------

    def _order(self, launch: Launch) -> None:
        if launch.run_id in self._runs:
            self._changed[launch.run_id] = None  # the agent may have missed the report, so send it again
            return
        if not RUN_ID.fullmatch(launch.run_id):
            _log(f"not a run id: {launch.run_id[:200]!r}")
            return
        self._runs[launch.run_id] = SpawnedRun(launch.run_id, launch.stop_grace_s, launch.ships_logs, launch.gpu_ids)
        self._alive += 1
        if self._alive == 1:
            self._wake_guard()
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
        self._leave_group()
        if not self._starts:
            os.fchdir(self._home)  # the working directory of the spawner must not stay in the folder of the last run

    def _start(self, launch: Launch, run: SpawnedRun) -> SpawnedRun:
        """Start a run. Write it to the journal first, so that a run that may have been started is never started again."""
        if launch.fault is not None:
            raise process_launch.CannotSpawn(launch.fault)
        if self._cgroups is not None:
            run = self._runs[run.run_id] = run.but(group=self._reserve_group())
        os.utime(self._mark_fd, ns=(0, 0))
        if not self._journal.put(run):
            raise process_launch.CannotSpawn("CannotStartContainerError: the journal cannot be written; is the disk full?")
        try:
            self._recycler.reuse_file(self._output(run.run_id))
            output = lock_files.open_locked(self._output(run.run_id))
        except OSError as error:
            raise process_launch.CannotSpawn(f"CannotStartContainerError: {error}") from None
        since_boot_s, now_s = boot_s(), self._clock.now_s()
        try:
            directory = self._directory(launch)
            run = self._enter_group(run)
            pid = process_launch.spawn(launch, directory, output, self._null, self._mark)
        finally:
            os.close(output)  # after this, only processes of the run hold the lock
        self._by_pid[pid] = run.run_id
        if run.group is not None:
            self._unlimited = (run.run_id, launch)
            self._at(since_boot_s + CPU_SHARE_S, lambda: self._share_cpu(run.run_id, launch.cpu_units))
        return run.but(pid=pid, started_at_s=now_s, started_boot_s=since_boot_s)

    def _reserve_group(self) -> str | None:
        assert self._cgroups is not None
        try:
            return self._cgroups.reserve()
        except OSError as error:
            _log(f"no cgroup for a run: {error}")
            return None

    def _limit_last(self) -> None:
        """Set the memory limit of the last started run. Call this when the spawner has left the cgroup of the run."""
        if self._unlimited is None or self._cgroups is None:
            return
        run_id, launch = self._unlimited
        self._unlimited, group = None, self._runs[run_id].group
        if group is not None and not self._cgroups.limit_memory(group, launch.memory_mib):
            self._over_limit.add(run_id)
            run_cgroups.kill(group)

    def _share_cpu(self, run_id: str, cpu_units: int) -> None:
        run = self._runs.get(run_id)
        if run is not None and run.group is not None and self._cgroups is not None:
            self._cgroups.share_cpu(run.group, cpu_units)

    def _enter_group(self, run: SpawnedRun) -> SpawnedRun:
        """Join the cgroup of a run, and so leave the cgroup of the previous run. If that fails, the run gets no cgroup."""
        if self._cgroups is None or run.group is None:
            self._leave_group()
            return run
        try:
            self._cgroups.enter(run.group)
            self._inside = run.run_id
        except OSError as error:
            _log(f"no cgroup for {run.run_id}: {error}")
            self._inside = self._inside or run.run_id
            self._leave_group()
            return run.but(group=None)
        self._limit_last()
        return run

    def _leave_group(self) -> None:
        """Return to the spawner's own cgroup.

        If that fails, stop using cgroups. Otherwise the spawner would kill itself when it kills the run.
        """
        if self._cgroups is None or self._inside is None:
            return
        run_id, self._inside = self._inside, None
        try:
            self._cgroups.leave()
        except OSError as error:
            _log(f"the spawner cannot leave a cgroup, so it uses none: {error}")
            self._cgroups = None
            self._runs[run_id] = self._runs[run_id].but(group=None)
        self._limit_last()

    def _directory(self, launch: Launch) -> str:
        if launch.working_directory is not None:
            return launch.working_directory
        directory = f"{self._data}/work/{launch.run_id}"
        try:
            self._recycler.make_folder(directory)
        except OSError as error:
            raise process_launch.CannotSpawn(f"CannotStartContainerError: {error}") from None
        return directory

    # -- output --------------------------------------------------------------------------------------------------

    def _start_guard(self) -> None:
        if self._guard_pid is not None:
            return
        pipe, self._guard_pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._guard_pid = fork_guard(self._data, pipe)
        finally:
            os.close(pipe)

    def _wake_guard(self) -> None:
        """Start the guard with the first run, so that an idle spawner needs no memory for it."""
        if self._guard_pid is None and not self._guard_died_before:
            self._start_guard()
            return
        with contextlib.suppress(OSError):  # the pipe is full: it is awake; or the guard has died: the next one looks for files
            os.write(self._guard_pipe, b"1")

    def _guard_died(self) -> None:
        """Resume the runs that the guard may have paused, and start another one."""
        os.close(self._guard_pipe)
        self._guard_pid, self._guard_pipe, self._guard_died_before = None, -1, True
        for run in self._runs.values():
            if run.alive and run.pid is not None and procfs.is_stopped(run.pid):
                resume(run)
        self._at(boot_s() + GUARD_RESTART_S, self._start_guard)

    def _end_guard(self) -> None:
        """No run is alive, so none is paused. The guard must end before the cgroup that it is in can be removed."""
        if self._guard_pid is not None:
            os.kill(self._guard_pid, signal.SIGKILL)
            os.waitpid(self._guard_pid, 0)

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is None or not run.alive or run.main_ended_at_s is not None or run.kill_at_boot_s is not None:
            return
        if run.pid is None:
            self._ended(run.but(reason=STOPPED_BEFORE_START))  # the start is still queued; `_start_some` skips ended runs
            return
        self._put(run.but(kill_at_boot_s=boot_s() + run.stop_grace_s))
        self._signal(run, signal.SIGTERM)
        self._signal(run, signal.SIGCONT)  # it may be paused
        self._at(boot_s() + run.stop_grace_s, lambda: self._kill(run_id))

    def _kill(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        if run is not None and run.main_ended_at_s is None and run.alive:
            self._signal(run, signal.SIGKILL)

    def _signal(self, run: SpawnedRun, number: signal.Signals) -> None:
        """Send a signal to the whole process group. Its leader has not been waited for, so the pid cannot have been reused."""
        assert run.pid is not None
        if run.pid in self._by_pid or is_same_process(run):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(run.pid, number)

    # -- ending --------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Wait for ended child processes.

        Kill the process group before waiting for its leader, because the pid may be reused afterwards.
        """
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
                self._main_ended(run_id, process_launch.exit_code(status), None)
            elif ended.si_pid == self._recycler.pid:
                self._recycler.child_ended()
            elif ended.si_pid == self._guard_pid:
                self._guard_died()

    def _watched_ended(self, fd: int) -> None:
        for run_id, watched in self._watched.items():
            if watched == fd:
                self._poll.unregister(fd)
                os.close(fd)
                del self._watched[run_id]
                self._main_ended(run_id, None, EXIT_STATUS_LOST)
                return

    def _main_ended(self, run_id: str, exit_code: int | None, reason: str | None) -> None:
        run = self._runs[run_id]
        if reason is None and exit_code and self._ran_out_of_memory(run):
            reason = OUT_OF_MEMORY
        run = run.but(main_ended_at_s=self._clock.now_s(), exit_code=exit_code, reason=reason)
        if self._kill_others(run) or lock_files.is_held(self._output(run_id)):
            self._put(run)
            self._linger(run_id, LINGER_FIRST_S)
        else:
            self._ended(run)

    def _ran_out_of_memory(self, run: SpawnedRun) -> bool:
        if self._cgroups is None or run.group is None:
            return False
        return run.run_id in self._over_limit or self._cgroups.ran_out_of_memory(run.group)

    def _kill_others(self, run: SpawnedRun) -> bool:
        """Kill the remaining processes of a run whose main process has ended. Return whether there were any."""
        if run.group is not None:
            if self._cgroups.is_empty(run.group) if self._cgroups is not None else not run_cgroups.pids(run.group):
                return False
            run_cgroups.kill(run.group)
            return True
        if run.run_id in self._adopted:
            return procfs.kill_with_variable(RUN_VARIABLE, run_mark(self._data, run.run_id))
        own = (self._recycler.pid, self._guard_pid)
        strangers = [pid for pid in self._children.pids() if pid not in self._by_pid and pid not in own]
        return bool(strangers) and procfs.kill_with_variable(RUN_VARIABLE, run_mark(self._data, run.run_id), strangers)

    def _linger(self, run_id: str, wait_s: float) -> None:
        """Check again later whether a process of the run is alive.

        It may be killed but not dead yet, or in another process group.
        """
        self._at(boot_s() + wait_s, lambda: self._still_held(run_id, wait_s))

    def _still_held(self, run_id: str, waited_s: float) -> None:
        path, left = self._output(run_id), self._kill_others(self._runs[run_id])
        held = lock_files.is_held(path)
        if not left and not held:
            self._ended(self._runs[run_id])
            return
        if held and waited_s >= LINGER_KILL_S:
            lock_files.kill_holders([path])
        self._linger(run_id, min(2 * waited_s, LINGER_MAX_S))

    def _ended(self, run: SpawnedRun) -> None:
        self._alive -= 1
        if not self._alive:
            self._idle_since = boot_s()
        if run.group is not None and self._cgroups is not None:
            self._cgroups.release(run.group)
        self._adopted.discard(run.run_id)
        self._over_limit.discard(run.run_id)
        self._put(run.but(stopped_at_s=self._clock.now_s(), group=None))

    def _put(self, run: SpawnedRun) -> None:
        """Store the run, write it to the journal, and queue it for the clients. If the journal cannot be written, retry later."""
        self._runs[run.run_id] = run
        self._changed[run.run_id] = None
        if not self._journal.put(run):
            self._at(boot_s() + JOURNAL_RETRY_S, self._catch_up)

    def _catch_up(self) -> None:
        if self._journal.is_behind and not self._journal.catch_up():
            self._at(boot_s() + JOURNAL_RETRY_S, self._catch_up)

    # -- forgetting ----------------------------------------------------------------------------------------------

    def _forget(self, run_ids: list[str]) -> None:
        """Forget ended runs. Write that to the journal first.

        If the spawner then crashes, the files of the runs are left, and the next spawner removes them.
        """
        ended = [run_id for run_id in run_ids if run_id in self._runs and not self._runs[run_id].alive]
        if not ended:
            return
        self._journal.forget(ended)
        for run_id in ended:
            del self._runs[run_id]
            self._remove_files(run_id)
        self._recycler.remove_trash()
        if self._journal.needs_rewrite:
            try:
                self._journal.rewrite(self._runs)
            except OSError as error:
                _log(f"cannot rewrite the journal: {error}")

    def _remove_files(self, run_id: str) -> None:
        try:
            self._recycler.release_file(self._output(run_id))
            self._recycler.release_folder(f"{self._data}/work/{run_id}")
        except OSError as error:
            _log(f"cannot remove the files of {run_id}: {error}")

    def _output(self, run_id: str) -> str:
        return f"{self._data}/output/{run_id}"


def _launch(run_id: str, fields: dict[str, Any]) -> Launch:
    try:
        return Launch(**fields)
    except TypeError as error:  # the order is from an agent of another version
        fault = f"CannotStartContainerError: the spawner does not understand the order: {error}"
        return Launch(run_id, [], {}, None, 0.0, ships_logs=bool(fields.get("ships_logs")), gpu_ids=[], fault=fault)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = dict(getopt(sys.argv[1:] if arguments is None else arguments, "", ["dir=", "boot-id=", "cgroup-root="])[0])
    data = Path(options["--dir"]).resolve()
    node_folder.make(data)
    lock = node_folder.try_lock(data / "spawner.lock")  # held until this process ends
    if lock is None:
        _log(f"another spawner is running in {data}")
        return 0
    os.chdir(data)
    procfs.become_subreaper()
    # Collect seldom: this process creates no reference cycles, and a collection is slow with thousands of objects.
    gc.set_threshold(50_000)
    try:
        cgroups = open_cgroups(data, options.get("--cgroup-root", run_cgroups.ROOT))
        spawner = Spawner(data, options.get("--boot-id") or kernel_boot_id(), WallClock(), cgroups)
    except Refused as why:
        _log(f"refused: {why}")
        return 2
    spawner.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
