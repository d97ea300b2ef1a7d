"""Three Unix accounts on one host: what a run of one of them can reach of the others, of Corral and of root.

    python bench/accounts.py [--verbose]

The script creates three accounts, starts a Corral and runs of the accounts, and lets a run of the second account try to reach the
run of the first, the processes and files of Corral, and root. Each attempt must be refused. Then it checks what must work. It
removes the accounts, prints what it found, and exits with 1 if an attempt was possible or something did not work. It needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from corral.channel import command_relay
from corral.channel.command_relay import EXIT, OUTPUT
from corral.model.agent_protocol import Execute
from corral.node import account_folders, lock_files
from corral.node.run_command import start_command
from corral.process.data_folder import ACCOUNT_WORK, account_work_folder
from engines.drivers import ENGINES, Driver
from engines.nodes import NodeFolder, is_running, kill, shell, spec
from eventually import eventually
from harness import Corral

ACCOUNTS = "corral-bench-a", "corral-bench-b", "corral-bench-c"
A, B, C = ACCOUNTS
PYTHON = "/usr/bin/python3"  # the accounts can read it, other than that of this script
SECRET = "secret-of-the-first-account"  # in the environment, the output, the memory and the files of its run
ROOT_SECRET = "secret-of-root"
SWAPS = 40
READ = ("environ", "maps", "smaps", "pagemap", "io", "auxv", "syscall", "stack", "personality", "numa_maps")
LISTED = ("fd", "fdinfo", "map_files", "cwd/.", "root/.", "task/{pid}/fd")
LINKED = ("cwd", "root", "exe", "ns/mnt", "ns/pid")
DEADLY = (signal.SIGTERM, signal.SIGKILL)
WRITTEN = ("mem", "oom_score_adj", "clear_refs", "comm", "timerslack_ns", "coredump_filter")
VICTIM = """
import os, time
kept = open("file", "w+"); kept.write(os.environ["SECRET"]); kept.flush()
os.symlink("file", "link")
print(os.environ["SECRET"], flush=True)
while True: time.sleep(1000)
"""
# The memory of root that a process still has between the change of its account and the start of its program.
BETWEEN = """
import sys, time, resource
secret = "ROOT" + "-MEMORY" * 100
from corral.node.account_process import become, find_account
become(find_account(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
print("ready", flush=True)
time.sleep(1000)
"""
SWAPPER = """
import os, sys
at, own, other = sys.argv[1:]
print("ready", flush=True)
while True:
    for target in (own, other):
        os.symlink(target, at + ".new"); os.rename(at + ".new", at)
"""
PASS_LOCK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1]); socket.send_fds(link, [b"x"], [199]); link.recv(1)
"""
TAKE_LOCK = """
import os, socket, sys, time
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); server.listen()
print("ready", flush=True)
link, _ = server.accept(); taken = socket.recv_fds(link, 1, 1); print("taken", flush=True); link.send(b"x")
time.sleep(1000)
"""
HIDE = """
import fcntl, os, sys, time
if os.fork() == 0:
    os.setsid(); fcntl.flock(199, fcntl.LOCK_UN); os.closerange(3, 4096)
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"], {})
    os._exit(0)
time.sleep(1000)
"""
PRELOADED = r"""
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void note(void) {
    FILE *file = fopen("PATH", "a");
    if (file) { fprintf(file, "%d\n", geteuid()); fclose(file); }
}
"""


class Findings:
    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self.attempts, self.possible, self.worked, self.failed = 0, list[str](), 0, list[str]()

    def tried(self, name: str, found: str) -> None:
        self.attempts += 1
        if not found.startswith("refused"):
            self.possible.append(f"{name}: {found}")
        if self._verbose or not found.startswith("refused"):
            print(f"  {name:44} {found[:120]}")

    def must(self, name: str, holds: object, detail: object = "") -> None:
        self.worked += bool(holds)
        if not holds:
            self.failed.append(f"{name}: {detail}")
        if self._verbose or not holds:
            print(f"  {name:44} {'works' if holds else f'DOES NOT WORK: {detail}'}")


class Bench:
    def __init__(self, base: Path, findings: Findings) -> None:
        self.base, self.findings = base, findings
        self.node = NodeFolder(base / "other")
        self.node.data.chmod(0o700)  # as `corral up` creates it
        self.driver = Driver(ENGINES["process"], self.node)
        self.program = base / "attempts.py"
        shutil.copy(Path(__file__).with_name("accounts_attempts.py"), self.program)
        self._count = 0

    def tried(self, account: str, attempts: list[tuple[str, str, list[Any]]], **more: Any) -> None:
        """Let a run of an account try these, and note what was possible."""
        for name, found in self.results(account, attempts, **more):
            self.findings.tried(name, found)

    def results(self, account: str, attempts: list[tuple[str, str, list[Any]]], **more: Any) -> list[tuple[str, str]]:
        self._count += 1
        path, run_id = self.base / f"attempts-{self._count}.json", f"attempts-{self._count}"
        path.write_text(json.dumps(attempts))
        ended = self.driver.run(spec(run_id, PYTHON, str(self.program), str(path), account=account, **more)).observed
        found = [json.loads(line) for line in self.node.output(run_id).splitlines() if line.startswith("[")]
        if len(found) != len(attempts):
            sys.exit(f"the attempts have ended early: {ended}\n{self.node.output(run_id)[-2000:]}")
        return [(name, text) for name, text in found]

    def close(self) -> None:
        self.driver.close()
        self.node.clean_up()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--verbose", action="store_true", help="print every attempt")
    verbose = options.parse_args().verbose
    if os.geteuid():
        sys.exit("this script creates accounts, so it needs root")
    findings, since = Findings(verbose=verbose), time.monotonic()
    ctypes.CDLL(None).syscall(250, 1, None)  # a session keyring of its own
    with _accounts(), tempfile.TemporaryDirectory(prefix="corral-accounts-") as folder:
        base = Path(folder)
        base.chmod(0o755)
        corral = Corral(base / "data", "sim:2", "--runtime", "process")
        bench = Bench(base, findings)
        try:
            corral.start()
            _try_all(bench, corral)
        finally:
            bench.close()
            corral.clear()
    print(f"{findings.attempts} attempts, {len(findings.possible)} possible; {findings.worked} controls work, "
          f"{len(findings.failed)} do not; {time.monotonic() - since:.0f} s")  # fmt: skip
    return 1 if findings.possible or findings.failed else 0


@contextmanager
def _accounts() -> Iterator[None]:
    try:
        for name in ACCOUNTS:
            subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", name], check=True)
        yield
    finally:
        for name in ACCOUNTS:
            subprocess.run(["userdel", "--remove", name], check=False, stderr=subprocess.DEVNULL)


def _try_all(bench: Bench, corral: Corral) -> None:
    victim = spec(
        "victim", PYTHON, "-c", VICTIM, account=A, environment={"SECRET": SECRET, "AWS_CONTAINER_AUTHORIZATION_TOKEN": SECRET}
    )
    bench.driver.engine.start([victim])
    pid = bench.driver.started("victim").observed.pid
    assert pid is not None
    bench.driver.printed("victim", SECRET)
    print("processes of others")
    _try_processes(bench, corral, pid)
    print("files, sockets and endpoints")
    _try_files(bench, corral, pid)
    print("the identity of a run")
    _try_identity(bench)
    print("the time between the change of the account and the program")
    _try_between(bench)
    print("links that are swapped while runs start")
    _try_swaps(bench)
    print("code of the user in processes of root")
    _try_preload(bench)
    print("locks and hidden processes")
    _try_locks(bench)
    print("what must work")
    _check(bench, victim, pid)


def _try_processes(bench: Bench, corral: Corral, victim: int) -> None:
    assert corral.process is not None
    targets = {
        "run": victim,
        "spawner": bench.node.spawner_pid(),
        "server": corral.process.pid,
        "agent": corral.processes("corral.node")[0],
    }
    attempts: list[tuple[str, str, list[Any]]] = []
    for name, pid in targets.items():
        proc = f"/proc/{pid}/"
        attempts += [(f"{name}: read {each}", "read", [proc + each]) for each in READ]
        attempts += [(f"{name}: list {each}", "list", [proc + each.format(pid=pid)]) for each in LISTED]
        attempts += [(f"{name}: follow {each}", "link", [proc + each]) for each in LINKED]
        attempts += [(f"{name}: write {each}", "write", [proc + each]) for each in WRITTEN]
        attempts += [(f"{name}: signal {number}", "kill", [pid, number]) for number in (0, *DEADLY, signal.SIGSTOP)]
        attempts += [
            (f"{name}: open mem", "mem", [pid]),
            (f"{name}: trace", "ptrace", [pid, 16]),
            (f"{name}: seize", "ptrace", [pid, 0x4206]),
            (f"{name}: read memory", "vm", [pid]),
            (f"{name}: take descriptor 1", "getfd", [pid, 1]),
            (f"{name}: nice", "nice", [pid]),
            (f"{name}: cores", "affinity", [pid]),
            (f"{name}: limits", "prlimit", [pid]),
            (f"{name}: read limits", "prlimit-read", [pid]),
            (f"{name}: compare", "kcmp", [pid]),
            (f"{name}: pages", "migrate", [pid]),
            (f"{name}: enter namespaces", "setns", [pid]),
            (f"{name}: output again", "read", [f"{proc}fd/1"]),
            (f"{name}: signal by pidfd", "pidfd", [pid, signal.SIGKILL]),
            (f"{name}: signal the group", "kill", [-os.getpgid(pid), signal.SIGKILL]),
        ]
    attempts.append(("secrets in command lines", "commands", [[SECRET]]))
    bench.tried(B, attempts)
    for name, pid in targets.items():
        bench.findings.must(f"{name} is alive", is_running(pid))


def _try_files(bench: Bench, corral: Corral, victim: int) -> None:
    data, node, own = corral.data, bench.node.node, account_work_folder(bench.node.node)
    work = account_folders.work_of(node, "victim")
    files = [
        *(data / name for name in ("credentials.json", "sessions.json", "secrets.json", "state.db", "state.db-wal", "server.json")),
        *(data / name for name in ("logs.db", "corral.toml", "lock", "server.log", "node/agent.log", "node/spawner.lock")),
        node / "journal", node / "starting", node / "spawner.log", node / "output/victim", f"{work}/file", f"{work}/link",
        f"/proc/{victim}/cwd/file", f"/proc/{victim}/fd/3", "/etc/shadow", "/root/.bash_history", "/proc/kcore", "/dev/mem",
    ]  # fmt: skip
    folders = [data, data / "node", data / "blobs", node, node.parent, node / "output", node / "sessions", work, own,
               ACCOUNT_WORK, f"{own}/{account_folders.CACHES}"]  # fmt: skip
    groups = (node / "cgroups").read_text().split()
    group = next(iter(Path(groups[0]).glob("[0-9]*-*")))
    root_group = str(Path(groups[0]).parent)
    url, token = corral.url, {"Authorization": "guessed"}
    bench.tried(
        B,
        [
            *((f"read {path}", "read", [str(path)]) for path in files),
            *((f"write {path}", "write", [str(path)]) for path in (files[0], files[3], node / "journal", f"{work}/file")),
            *((f"list {path}", "list", [str(path)]) for path in folders),
            *((f"create in {path}", "create", [f"{path}/x"]) for path in folders),
            *((f"rename {path}", "rename", [str(path)]) for path in (work, own, ACCOUNT_WORK, data, node)),
            *((f"own {path}", "chown", [str(path)]) for path in (work, own, data)),
            ("enter the work folder", "chdir", [work]), ("link in the folder of runs", "symlink", [f"{own}/next"]),
            ("folder of a later run", "mkdir", [f"{own}/later"]),
            *((f"connect to {each}", "connect", [str(node / each)]) for each in ("spawner.sock", "kept.sock")),
            *((f"connect to node/{each}", "connect", [str(data / "node" / each)])
              for each in ("core.sock", "spawner.sock", "kept.sock")),
            ("connect to the door", "connect", [str(data / "door/server.sock")]),
            ("connect to Docker", "connect", ["/var/run/docker.sock"]),
            *((f"cgroup: write {each.name}", "write", [str(each)]) for each in sorted(group.iterdir()) if each.is_file()),
            *((f"cgroup: leave to {path}", "write", [f"{path}/cgroup.procs"]) for path in (root_group, f"{groups[0]}/spawner")),
            *((f"cgroup: create in {path}", "mkdir", [f"{path}/x"]) for path in (*groups, str(group))),
            *((f"fetch {path}", "fetch", [f"{url}{path}", headers])
              for path in ("/v2/credentials/victim", "/v4/victim", "/v4/victim/task", "/?Action=ListUsers", "/console/")
              for headers in ({}, token)),
            ("names in shared folders", "names", [["/tmp/*corral*/*", "/dev/shm/*", "/run/*corral*", "/var/tmp/*corral*"]]),
            ("its own output: open", "own-output", []), ("its own output: lease", "lease", []),
            ("its own output: mode", "mode", []),
            ("its own output: second name", "hardlink", ["/proc/self/fd/1", f"/home/{B}/second"]),
            ("a file of Corral: second name", "hardlink", [str(data / "credentials.json"), f"/home/{B}/third"]),
        ],
    )  # fmt: skip


def _try_identity(bench: Bench) -> None:
    entry = pwd.getpwnam(B)
    numbers = [entry.pw_uid, *os.getgrouplist(B, entry.pw_gid)]
    key = b"corral-bench"
    libc = ctypes.CDLL(None)
    libc.syscall(248, b"user", key, b"root", 4, -3)  # into the session keyring of this process and of its spawner
    bench.findings.must("root finds the key", libc.syscall(250, 10, -3, b"user", key, 0) > 0)
    root_folder = bench.base / "of-root"
    root_folder.mkdir(0o700)
    (root_folder / "file").write_text(ROOT_SECRET)
    shutil.copy("/usr/bin/id", bench.base / "id-setgid")
    os.chmod(bench.base / "id-setgid", 0o755)
    nofile = list(resource.getrlimit(resource.RLIMIT_NOFILE))
    bench.tried(
        B,
        [
            ("inherited descriptors", "descriptors", []), ("capabilities", "capabilities", []),
            ("other groups", "groups", [numbers]),
            ("variables of root", "variables", [["CORRAL_TEST_SECRET", SECRET, "/root/.corral"]]),
            ("key of root's session", "key", [key.decode()]), ("other limits", "limits", [{"RLIMIT_NOFILE": nofile}]),
            ("become root", "become", [0]), ("become another account", "become", [pwd.getpwnam(A).pw_uid]),
            ("add a group", "group", [0]),
            ("sudo", "root", ["sudo", "-n", "id", "-u"]), ("su", "root", ["su", "-c", "id -u"]),
            ("su to another account", "run", ["su", A, "-c", "true"]), ("newgrp", "run", ["newgrp", "root"]),
            ("mount", "run", ["mount", "--bind", "/root", "/mnt"]), ("chroot", "run", ["chroot", "/", "true"]),
            ("user namespace", "userns", [str(root_folder / "file")]), ("user namespace: keys", "userns", [str(root_folder)]),
            ("program of root's folder", "run", [str(root_folder / "file")]),
        ],
    )  # fmt: skip


def _try_between(bench: Bench) -> None:
    """The child of the spawner has root's memory until exec. Another process of the same account must not reach it."""
    with _process(sys.executable, "-c", BETWEEN, B, cwd=f"/home/{B}") as between:
        pid, proc = between.pid, f"/proc/{between.pid}/"
        bench.tried(
            B,
            [
                *((f"child: read {each}", "read", [proc + each]) for each in READ),
                *((f"child: list {each}", "list", [proc + each.format(pid=pid)]) for each in LISTED),
                *((f"child: follow {each}", "link", [proc + each]) for each in LINKED),
                ("child: open mem", "mem", [pid]), ("child: write mem", "write", [f"{proc}mem"]),
                ("child: trace", "ptrace", [pid, 16]), ("child: seize", "ptrace", [pid, 0x4206]),
                ("child: read memory", "vm", [pid]), ("child: take descriptor 1", "getfd", [pid, 1]),
            ],
        )  # fmt: skip
        found = bench.results(B, [("child: SIGABRT", "kill", [pid, signal.SIGABRT])])
        between.wait()
        cores = list(Path(f"/home/{B}").glob("core*"))
        bench.findings.tried("child: core dump", f"possible: {cores}" if cores else f"refused: no file after {found[0][1]}")


def _try_swaps(bench: Bench) -> None:
    home, closed = Path(f"/home/{B}"), bench.base / "of-root"
    (closed / "program").write_text(f"#!/bin/sh\necho {ROOT_SECRET}\n")
    (closed / "program").chmod(0o700)
    own = home / "own"
    own.mkdir()
    (own / "file").write_text("own")
    (own / "program").write_text("#!/bin/sh\necho own\n")
    (own / "program").chmod(0o755)
    at = home / "swapped"
    bench.driver.engine.start([spec("swapper", PYTHON, "-c", SWAPPER, str(at), str(own), str(closed), account=B)])
    bench.driver.printed("swapper", "ready")
    runs = [spec(f"in-{each}", "cat", "file", working_directory=str(at), account=B) for each in range(SWAPS)]
    runs += [spec(f"of-{each}", f"{at}/program", account=B) for each in range(SWAPS)]
    bench.driver.engine.start(runs)
    ended = [bench.driver.ended(run.run_id).observed for run in runs]
    texts = [bench.node.output(run.run_id) if Path(bench.node.node / "output" / run.run_id).exists() else "" for run in runs]
    bench.driver.engine.stop(["swapper"])
    bench.driver.ended("swapper")
    for kind, start in (("working directory", 0), ("program", SWAPS)):
        part = texts[start : start + SWAPS]
        leaked = any(ROOT_SECRET in text for text in part)
        bench.findings.tried(
            f"swapped {kind}, {SWAPS} runs", "possible: root's file was read" if leaked else "refused: own or none"
        )
        bench.findings.must(f"some runs with a swapped {kind} start", any("own" in text for text in part), ended[start])


def _try_preload(bench: Bench) -> None:
    library, noted, source = bench.base / "preloaded.so", Path(f"/home/{B}/uids"), bench.base / "preloaded.c"
    source.write_text(PRELOADED.replace("PATH", str(noted)))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    library.chmod(0o755)
    noted.write_text("")
    noted.chmod(0o666)
    uid = pwd.getpwnam(B).pw_uid
    # Variables with which the user would change a Python, a loader or a shell of root.
    environment = {"LD_PRELOAD": str(library), "PYTHONPATH": f"/home/{B}", "PYTHONSTARTUP": str(library), "BASH_ENV": "/no/such"}
    run = shell("preloaded", "echo ready; sleep 300", account=B, environment=environment)

    def uids() -> set[int]:
        return {int(line) for line in noted.read_text().split()}

    async def check() -> int:
        lock = lock_files.open_locked(str(bench.base / "check.lock"))
        process = await start_command(run, bench.node.node, ["sh", "-c", "true"], environment, lock)
        os.close(lock)
        return await process.wait()

    bench.driver.engine.start([run])
    bench.driver.started("preloaded")
    eventually(lambda: uids(), "the library is loaded")
    said = bench.driver.execute(Execute("preloaded", run, ["sh", "-c", "exit 3"], has_terminal=False))
    code = asyncio.run(check())
    bench.driver.engine.stop(["preloaded"])
    bench.driver.ended("preloaded")
    found = uids() - {uid}
    bench.findings.tried(
        "LD_PRELOAD: run, session, health check", f"possible: as {found}" if found else "refused: only as its account"
    )
    bench.findings.must("a session and a check with LD_PRELOAD", said.get(EXIT) == b"\0\0\0\3" and code == 0, (said, code))


def _try_locks(bench: Bench) -> None:
    path = Path(f"/home/{C}/lock.sock")
    Path(f"/home/{C}").chmod(0o755)
    with _process(PYTHON, "-c", TAKE_LOCK, str(path), user=C) as taker:
        bench.driver.run(spec("passes", PYTHON, "-c", PASS_LOCK, str(path), account=B))
        held = lock_files.is_held(str(bench.node.node / "output/passes"))
        bench.findings.must("a process of another account holds the lock", held)
        alive = is_running(taker.pid)
        bench.findings.tried("let root kill a process with the lock", "refused: alive" if alive else "possible: it was killed")
    bench.driver.engine.start([spec("hides", PYTHON, "-c", HIDE, account=B)])
    bench.driver.printed("hides", "\n")
    hidden = int(bench.node.output("hides"))
    bench.driver.engine.stop(["hides"])
    bench.driver.ended("hides")
    bench.findings.tried("hide a process from its run", "possible: it is alive" if is_running(hidden) else "refused: it was killed")
    aborts = "ulimit -c unlimited 2>/dev/null; ulimit -c $(ulimit -Hc); kill -ABRT $$"
    bench.driver.run(shell("aborts", aborts, account=B))
    dumped = [each.read_bytes() for each in Path(account_folders.work_of(bench.node.node, "aborts")).glob("core*")]
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() == "core":
        bench.findings.must("a core dump", dumped)
    cores = [len(each) for each in dumped if SECRET.encode() in each or ROOT_SECRET.encode() in each]
    bench.findings.tried("core dump with data of others", f"possible: {cores}" if cores else "refused: none")


def _check(bench: Bench, victim: Any, pid: int) -> None:
    driver, must = bench.driver, bench.findings.must
    work = account_folders.work_of(bench.node.node, "victim")
    own = bench.results(
        A,
        [
            ("own environment", "read", [f"/proc/{pid}/environ"]),
            ("own memory", "mem", [pid]),
            ("own descriptors", "list", [f"/proc/{pid}/fd"]),
            ("own descriptor", "getfd", [pid, 1]),
            ("own work folder", "list", [work]),
            ("own signal", "kill", [pid, 0]),
            ("own process group", "kill", [-pid, 0]),
            ("own nice", "nice", [pid]),
        ],
    )
    for name, found in own:
        must(name, found.startswith("possible"), found)
    groups = os.getgrouplist(A, pwd.getpwnam(A).pw_gid)
    driver.run(shell("id", "id -u; id -G; umask; echo $HOME; cd; touch here && rm here; echo text >> /dev/stdout", account=A))
    lines = bench.node.output("id").splitlines()
    must("user, groups and home", lines[0] == str(pwd.getpwnam(A).pw_uid) and lines[1].split() == [str(each) for each in groups]
         and lines[3:] == [f"/home/{A}", "text"], lines)  # fmt: skip
    said = driver.execute(Execute("own", victim, ["sh", "-c", "cat file; id -un"], has_terminal=False))
    must("a session", said[OUTPUT].decode() == f"{SECRET}{A}\n", said)
    _check_interactive(bench)
    ended = driver.run(spec("large", PYTHON, "-c", "x = b'x' * 300_000_000", account=A, memory_mib=64)).observed
    must("the memory limit", ended.exit_code == 137 and "OutOfMemory" in (ended.reason or ""), ended)
    flood = "import os\nfor _ in range(3000): os.write(1, b'x' * 99_999 + b'\\n')"
    driver.engine.start([spec("flood", PYTHON, "-c", flood, account=A)])
    driver.ended("flood")
    eventually(lambda: os.stat(bench.node.node / "output/flood").st_blocks * 512 < 160 * 2**20, "the output is bounded")
    must("the bound of the output", holds=True)
    driver.engine.signal(["victim"], "SIGSTOP")
    kill(bench.node.spawner_pid())
    driver.until(lambda: not driver.engine.problem and driver.engine.observe()["victim"].alive, "a new spawner")
    driver.run(shell("after", "true", account=A))
    must(
        "the run is adopted after kill -9 of the spawner", driver.engine.observe()["victim"].observed.pid == pid and is_running(pid)
    )
    driver.engine.stop(["victim"])
    must("an adopted run can be stopped", driver.ended("victim") and not is_running(pid))
    driver.engine.forget(list(driver.engine.observe()))
    folder = Path(account_work_folder(bench.node.node))
    driver.run(shell("last", "true", account=A))
    eventually(lambda: {each.name for each in folder.iterdir()} <= {"last", account_folders.CACHES}, "work folders are removed")
    must("the work folders are removed", holds=True)


def _check_interactive(bench: Bench) -> None:
    """The main process of `corral run -i`: a relay that connects to a socket of the user."""
    import socket

    folder = bench.base / "interactive"
    folder.mkdir()
    os.chown(folder, pwd.getpwnam(A).pw_uid, -1)
    relay = shutil.copy(command_relay.__file__, bench.base / "relay.py")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))
        os.chown(folder / "s", pwd.getpwnam(A).pw_uid, -1)
        server.listen()
        server.settimeout(20)
        words = [PYTHON, "-I", "-S", str(relay), "pipe", str(folder / "s"), "--", "id", "-un"]
        bench.driver.engine.start([spec("interactive", *words, account=A)])
        link, _ = server.accept()
        with link:
            bench.driver.ended("interactive")
            said = b""
            while part := link.recv(4096):
                said += part
    bench.findings.must("corral run -i", A.encode() in said and A in bench.node.output("interactive"), said)


@contextmanager
def _process(*command: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process that prints a line when it is ready, and end it afterwards."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
