"""A Docker engine for tests, in a temporary folder: without the default bridge, without iptables, without a registry."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from eventually import eventually

BUSYBOX = "busy:1"  # a shell and what goes with it
SYSTEM = "system:1"  # nothing but links: with this machine's /usr and /etc it is this machine's programs
GREEDY = "greedy:1"  # as BUSYBOX, and it wants to see all GPUs
SYSTEM_VOLUMES = ("/usr", "/etc")
FOLDERS = "corral-docker-"  # how their names begin
LOCK = "corral-docker.lock"  # a file in the folder that contains theirs
FREE_S = 240.0  # less than the timeout of a test
HOOK = "#!/bin/sh\ncat > /dev/null\n"  # stands in for NVIDIA's, so that the engine takes requests for GPUs


# Where a machine lacks this capability no container can have it: a privileged one, which asks for all, gets the others.
LACKING = "CAP_SYS_RESOURCE"
SYS_RESOURCE = 1 << 24
RUNC = f"""#!/bin/sh
for word; do
  [ "$before" = --bundle ] && sed -i 's/"{LACKING}",//g; s/,"{LACKING}"//g' "$word/config.json"
  before=$word
done
exec RUNC "$@"
"""


def lacking_capabilities() -> int:
    """The capabilities that no process on this machine can have, as bits."""
    bound = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:"))
    every = (1 << int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1) - 1
    return every & ~int(bound.split()[1], 16)


def why_not() -> str | None:
    """Why a Docker engine cannot run here; None: it can."""
    if os.geteuid() != 0:
        return "a Docker engine of one's own needs root"
    for program in ("dockerd", "docker", "busybox"):
        if shutil.which(program) is None:
            return f"{program} is not installed: `make test` installs it"
    return None


def processes(command: str) -> list[int]:
    """The processes of this machine whose command line contains these arguments in this order."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if command in path.read_text(errors="replace"):
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def only_networks() -> Iterator[None]:
    """Wait until no other process of this machine has an engine with Corral's networks, and keep others from having one.

    The networks of all engines have the same subnet and are in the same network namespace, so Corral's responses to a container
    could go to the bridge of another engine.
    """
    file = os.open(Path(tempfile.gettempdir(), LOCK), os.O_RDWR | os.O_CREAT, 0o600)

    def locked() -> bool:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    try:
        eventually(locked, "the end of another run of tests, or of a benchmark, with a Docker engine", FREE_S)
        yield
    finally:
        os.close(file)


def clear_left_behind() -> None:
    """Remove what the engines of killed tests left: containers, bridges, mounts, folders. The caller has `only_networks`.

    A test process locks the folder of its engine until it ends. For each folder without a lock, an engine is started there once
    more and removes its own containers and networks.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # removed in between, or in use
            owner = _locked(folder, os.O_RDONLY)
            try:
                _end_engine(folder)
                Dockerd(folder).close()
            except AssertionError as why:
                warnings.warn(f"what an engine has left in {folder} cannot be cleared away: {why}", stacklevel=2)
            finally:
                os.close(owner)


def _locked(folder: Path, flags: int) -> int:
    """Lock the file that marks the folder as in use. Raises BlockingIOError if another process holds the lock."""
    owner = os.open(folder / "owner", flags, 0o600)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(owner)
        raise
    return owner


def _end_engine(folder: Path) -> None:
    """Kill an engine that outlived its test process, and its containerd, which the next engine would otherwise try to use."""
    for path in (folder / "pid", folder / "exec" / "containerd" / "containerd.pid"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            process = Path("/proc", path.read_text().strip())
            if str(folder).encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGTERM)
                eventually(lambda process=process: not process.exists(), "the engine of a test that was killed ends")
        path.unlink(missing_ok=True)


def busybox_files() -> tuple[dict[str, bytes], dict[str, str]]:
    """The files and links of an image with a shell and its libraries."""
    busybox = Path(shutil.which("busybox") or "").read_bytes()
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    files = {"bin/busybox": busybox, "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nother:x:1000:1000::/:/bin/sh\n"}
    return files, {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}


def layer(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr"):
            if folder not in links:
                about = tarfile.TarInfo(folder)
                about.type, about.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
                tar.addfile(about)
        for path, data in files.items():
            about = tarfile.TarInfo(path)
            about.size, about.mode = len(data), 0o755
            tar.addfile(about, io.BytesIO(data))
        for path, target in links.items():
            about = tarfile.TarInfo(path)
            about.type, about.linkname = tarfile.SYMTYPE, target
            tar.addfile(about)
    return archive.getvalue()


class Dockerd:
    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: None creates a new one; a folder that an earlier engine left is reused to clean it up."""
        self.folder = folder or Path(tempfile.mkdtemp(prefix=FOLDERS))
        self.host = f"unix://{self.folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: int | None = None
        if folder is not None:
            self.start()
            return
        self._owner = _locked(self.folder, os.O_WRONLY | os.O_CREAT)
        (self.folder / "bin").mkdir()
        self._add_program("nvidia-container-runtime-hook", HOOK)
        if lacking_capabilities() & SYS_RESOURCE:
            self._add_program("runc", RUNC.replace("RUNC", shutil.which("runc") or "runc"))
        self.start()
        self._make_images()

    def _add_program(self, name: str, text: str) -> None:
        """Install a program that the engine finds before that of the machine."""
        program = self.folder / "bin" / name
        program.write_text(text)
        program.chmod(0o755)

    def start(self) -> None:
        command = [
            "dockerd", "--bridge=none", "--iptables=false", "--ip-masq=false", "--shutdown-timeout=1", "--live-restore",
            "--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec", "-p", f"{self.folder}/pid", "-H", self.host,
        ]  # fmt: skip
        environment = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        eventually(self._answers, "the Docker engine answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        return subprocess.run(["docker", "-H", self.host, "version"], capture_output=True).returncode == 0

    def __call__(self, *arguments: str, data: bytes | None = None) -> str:
        """The docker command."""
        done = subprocess.run(["docker", "-H", self.host, *arguments], input=data, capture_output=True)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    def containers(self, *filters: str) -> list[str]:
        given = [word for each in filters for word in ("--filter", each)]
        return self("ps", "-a", "-q", "--no-trunc", *given).split()

    def stop(self) -> None:
        """Stop the engine. Its containers continue (--live-restore)."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=30)

    def _make_images(self) -> None:
        busybox, links = busybox_files()
        self.make_image(BUSYBOX, busybox, links)
        self.make_image(SYSTEM, {}, {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")})
        self.make_image(GREEDY, busybox, links, "ENV NVIDIA_VISIBLE_DEVICES=all", 'CMD ["/bin/env"]')

    def make_image(self, name: str, files: dict[str, bytes], links: dict[str, str], *changes: str) -> None:
        self("import", *[word for change in changes for word in ("--change", change)], "-", name, data=layer(files, links))

    def close(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            if found := self.containers():
                self("rm", "-f", *found)
            self("network", "prune", "-f")
            self.stop()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((mount for mount in mounts if mount.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)
        if self._owner is not None:
            os.close(self._owner)
