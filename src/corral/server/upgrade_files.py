"""The wheels with which hosts upgrade: one of Corral, packed from the installed files, and those of its dependencies.

An installation keeps no wheels, so Corral's is packed again, always with the same bytes. Compiled dependencies fit one Python and
one platform: they come from the folder `upgrade.wheels` of corral.toml. Agents fetch the files by their SHA-256
(`node/upgrade.py`).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

import corral
from corral.core.errors import Refused
from corral.model.agent_protocol import UpgradeOrder, Wheel
from corral.version import COMMIT_FILE, full_version

PATH = "/_corral/upgrade/"  # then the SHA-256 of a file
ZIP_TIME = (1980, 1, 1, 0, 0, 0)
WHEEL = "Wheel-Version: 1.0\nGenerator: corral\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class UpgradeFiles:
    def __init__(self, wheels: str) -> None:
        self._wheels = wheels  # the folder with the wheels of dependencies; empty: none
        self._contents: dict[str, bytes | Path] = {}  # by SHA-256

    def order(self) -> UpgradeOrder:
        """Return the order to upgrade to this version. Any thread may call this method."""
        wheel, name = packed_wheel(), f"corral-{corral.__version__}-py3-none-any.whl"
        found = [(name, wheel, wheel)]
        if self._wheels:
            folder = Path(self._wheels)
            if not folder.is_dir():
                raise Refused(f"The folder {folder}, which upgrade.wheels names, does not exist.")
            found += [(path.name, path.read_bytes(), path) for path in sorted(folder.glob("*.whl"))]  # type: ignore[misc]
        files = [Wheel(name, sha256(content).hexdigest()) for name, content, _ in found]
        self._contents = {file.sha256: kept for file, (_, _, kept) in zip(files, found, strict=True)}
        return UpgradeOrder(full_version(), files)

    def read(self, digest: str) -> bytes | None:
        found = self._contents.get(digest)
        return found.read_bytes() if isinstance(found, Path) else found


@cache
def packed_wheel() -> bytes:
    """Return a wheel of this installation."""
    import zipfile  # imported here, as in _metadata, because few servers need it

    info, records, packed = f"corral-{corral.__version__}.dist-info", list[str](), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (*_package_files(), (f"{info}/METADATA", _metadata()), (f"{info}/WHEEL", WHEEL.encode())):
            archive.writestr(zipfile.ZipInfo(name, ZIP_TIME), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(sha256(content).digest()).decode().rstrip("=")
            records.append(f"{name},sha256={digest},{len(content)}\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", ZIP_TIME), "".join([*records, f"{info}/RECORD,,\n"]))
    return packed.getvalue()


def _package_files() -> Iterator[tuple[str, bytes]]:
    package = Path(corral.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.name != COMMIT_FILE:
            yield f"corral/{path.relative_to(package).as_posix()}", path.read_bytes()
    _, _, commit = full_version().partition("(commit ")
    if commit:
        yield f"corral/{COMMIT_FILE}", commit.rstrip(")").encode()


def _metadata() -> bytes:
    """Return the metadata of the wheel: its name, its version and its dependencies."""
    from importlib import metadata

    needed = [each for each in metadata.requires("corral") or () if "extra ==" not in each]
    lines = ["Metadata-Version: 2.1", "Name: corral", f"Version: {corral.__version__}"]
    return "".join(f"{line}\n" for line in [*lines, *(f"Requires-Dist: {each}" for each in sorted(needed))]).encode()
