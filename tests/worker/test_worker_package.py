"""The packages that pip installs: `corral-worker`, and the full package with the same code as `corral.worker`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import corral

REPOSITORY = Path(__file__).parent.parent.parent
GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com"]


def output_of(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def checkout(folder: Path) -> str:
    """Copy what the packages are built from, so that a build leaves nothing in this repository. Return the commit of the copy."""
    for name in ("src", "packages"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(REPOSITORY / name, folder)
    output_of("git", "init", "--quiet", cwd=folder)
    output_of(*GIT, "commit", "--quiet", "--allow-empty", "--message", "copy", cwd=folder)
    return output_of("git", "rev-parse", "HEAD", cwd=folder)


def test_both_packages_can_be_installed_and_either_can_be_removed(tmp_path: Path) -> None:
    copy, venv = tmp_path / "checkout", tmp_path / "venv"
    commit = checkout(copy)
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    wheels = ["wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels"]
    output_of(*pip, *wheels, copy, copy / "packages" / "worker", cwd=tmp_path)
    full, worker = sorted((tmp_path / "wheels").iterdir())
    assert worker.name.startswith("corral_worker-")
    output_of(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    python = venv / "bin" / "python"
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # boto3 and the other dependencies of both

    def install(*wheels: Path) -> None:
        output_of(*pip, "--python", python, "install", "--no-index", "--no-deps", "--no-compile", *wheels, cwd=tmp_path)

    def remove(name: str) -> None:
        output_of(*pip, "--python", python, "uninstall", "--yes", name, cwd=tmp_path)

    def found() -> str:
        """Which of the two modules have a queue worker. -P: not those of the present folder."""
        program = """if True:
            import importlib
            for name in ("corral", "corral.worker", "corral_worker"):
                try:
                    module = importlib.import_module(name)
                    print(name, hasattr(module, "QueueWorker") and module.QueueWorker.__module__)
                except ModuleNotFoundError as error:
                    assert name.startswith(error.name), error
        """
        return output_of(python, "-P", "-c", program, cwd=tmp_path)

    both = "corral False\ncorral.worker corral.worker.queue_worker\ncorral_worker corral_worker.queue_worker"
    of_worker, of_full = both.splitlines()[-1], "\n".join(both.splitlines()[:2])
    install(worker, full)
    assert found() == both
    metadata = next(site.glob("corral_worker-*.dist-info/METADATA")).read_text().splitlines()
    assert [line for line in metadata if line.startswith("Requires-Dist")] == ["Requires-Dist: boto3>=1.43"]
    assert output_of(venv / "bin" / "corral", "--version", cwd=tmp_path) == f"corral {corral.__version__} (commit {commit[:12]})"
    remove("corral-worker")
    assert found() == of_full
    install(worker)
    remove("corral")
    assert found() == of_worker


def test_all_files_have_the_same_version() -> None:
    for path in (REPOSITORY / "pyproject.toml", REPOSITORY / "packages" / "worker" / "pyproject.toml"):
        assert tomllib.loads(path.read_text())["project"]["version"] == corral.__version__
    assert f"\n## {corral.__version__}\n" in (REPOSITORY / "CHANGELOG.md").read_text()
    links = REPOSITORY / "packages" / "worker" / "corral_worker"
    assert links.resolve() == REPOSITORY / "src" / "corral" / "worker"
