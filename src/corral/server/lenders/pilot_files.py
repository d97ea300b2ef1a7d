"""The wheels with which the pilots of lenders start, on machines that do not have this version of Corral.

They are those with which hosts upgrade (`server/upgrade_files.py`), and the dependencies of a host, packed again from the files of
this installation. The latter fit if the machines have the Python of the server.
"""

from __future__ import annotations

import io
import zipfile
from hashlib import sha256
from importlib import metadata
from threading import Lock

from corral.server.upgrade_files import ZIP_TIME, UpgradeFiles

NODE_NEEDS = ("msgspec", "orjson", "uvloop", "cryptography", "cffi", "pycparser", "nvidia-ml-py")


class PilotFiles:
    def __init__(self, upgrade_files: UpgradeFiles) -> None:
        self._upgrade_files = upgrade_files
        self._lock = Lock()
        self._names: dict[str, str] = {}  # of this installation's wheels: name → SHA-256
        self._contents: dict[str, bytes] = {}  # by SHA-256
        self.requires: list[str] = []

    def offer(self) -> dict[str, str]:
        """Return the names of the wheels with their SHA-256, that of Corral first. Packing takes a second at the first call."""
        with self._lock:
            if not self.requires:
                found = {name: content for each in NODE_NEEDS for name, content in _packed(each)}
                self._names = {name: sha256(content).hexdigest() for name, content in found.items()}
                self._contents = {self._names[name]: content for name, content in found.items()}
                self.requires = [name for name in NODE_NEEDS if _is_installed(name)]
            return {wheel.name: wheel.sha256 for wheel in self._upgrade_files.order().files} | self._names

    def read(self, digest: str) -> bytes | None:
        return self._contents.get(digest) or self._upgrade_files.read(digest)


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def _packed(name: str) -> list[tuple[str, bytes]]:
    """Return a wheel of an installed distribution. Return nothing if its files are not known."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []
    tags = [
        line.removeprefix("Tag:").strip() for line in (distribution.read_text("WHEEL") or "").splitlines() if line[:4] == "Tag:"
    ]
    if not tags or not distribution.files:
        return []
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in sorted(distribution.files, key=str):
            if ".." not in file.parts and file.suffix != ".pyc":
                archive.writestr(zipfile.ZipInfo(str(file), ZIP_TIME), file.read_binary(), zipfile.ZIP_DEFLATED, compresslevel=1)
    python, abi, _ = tags[0].split("-")
    platforms = ".".join(dict.fromkeys(tag.split("-")[2] for tag in tags))
    return [(f"{name.replace('-', '_')}-{distribution.version}-{python}-{abi}-{platforms}.whl", packed.getvalue())]
