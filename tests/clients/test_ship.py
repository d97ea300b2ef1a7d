"""`corral run --ship`: the folder is sent once, and the run works in a copy."""

from __future__ import annotations

import os
import re
import subprocess
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from command import Cli
from each import check_each
from harness import Corral

SENT = re.compile(r"sent ([\d.]+) MB of the folder")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory):
    made = Cli(tmp_path_factory.mktemp("ship"))
    corral = Corral(made.data, "none", "--runtime", "process").start()
    yield made
    corral.clear()


def project(folder: Path) -> Path:
    """A folder of 3 MB with a program, links, and files that git ignores."""
    (folder / "src").mkdir(parents=True)
    (folder / ".gitignore").write_text("*.ckpt\n/cache/\n")
    (folder / "cache").mkdir()
    (folder / "cache" / "x").write_text("ignored")
    (folder / "model.ckpt").write_bytes(bytes(1000))
    (folder / "data.bin").write_bytes(os.urandom(3_000_000))
    (folder / "json.py").write_text("raise SystemExit('a file of the folder was imported by Corral')\n")
    (folder / "src" / "go.sh").write_text("#!/bin/sh\nfind . -type f -o -type l | sort; cat src/now; echo index $CORRAL_INDEX\n")
    (folder / "src" / "go.sh").chmod(0o755)
    (folder / "src" / "words").write_text("one\n")
    (folder / "src" / "now").symlink_to("words")
    return folder


FILES = [f"./{name}" for name in (".gitignore", "data.bin", "json.py", "src/go.sh", "src/now", "src/words")]


def shipped(cli: Cli, folder: Path, *words: str) -> tuple[list[str], float]:
    """Run the program of a folder. Return its output, and how many MB were sent."""
    done = cli("run", "--ship", "--workdir", str(folder), *words, "--", "./src/go.sh")
    sent = SENT.search(done.stderr)
    assert sent, done.stderr
    return done.stdout.splitlines(), float(sent[1])


def test_a_folder_is_sent_once_and_every_run_works_in_a_copy(cli: Cli, tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    assert shipped(cli, folder) == ([*FILES, "one", "index"], 3.0)
    (folder / "src" / "words").write_text("two\n")
    assert shipped(cli, folder) == ([*FILES, "two", "index"], 0.0)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    output, sent = shipped(cli, folder, "--array", "1-2")
    assert {line.partition(" | ")[2] for line in output} >= {"index 1", "index 2", "./src/now"} and sent == 0, output
    [damaged] = [path for path in (cli.data / "node" / "shipped").iterdir() if path.read_bytes() == b"two\n"]
    damaged.write_bytes(b"two?")  # as after a power failure
    assert cli("rerun", "go").stdout.splitlines()[-2].endswith("two")


def test_what_cannot_be_sent_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    link = folder / "src" / "out"
    for target in ("/etc/passwd", "../../other", "../.."):
        link.symlink_to(target)
        refused = cli("run", "--ship", "--workdir", str(folder), "--", "./src/go.sh", code=1)
        assert "src/out is a link to" in refused.stderr and "out of the folder" in refused.stderr
        link.unlink()
    (folder / "cache" / ".gitignore").write_text("*\n")
    refused = cli("run", "--ship", "--workdir", str(folder / "cache"), "--", "true", code=1)
    assert "There is nothing to send: git ignores all files" in refused.stderr
    cli("config", "set", "ship.folder_mib", "1")
    refused = cli("run", "--ship", "--workdir", str(folder), "--", "./src/go.sh", code=1)
    assert "has more than 1 MiB" in refused.stderr
    cli("config", "unset", "ship.folder_mib")
    cli("config", "set", "shared-folders.paths", str(tmp_path))
    done = cli("run", "--ship", "--workdir", str(folder), "--", "pwd")
    assert "is in the shared folder" in done.stderr and done.stdout == f"{folder}\n"
    cli("config", "unset", "shared-folders.paths")


def test_a_folder_that_is_not_stored_any_more_leaves_no_half_folder(cli: Cli, tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    (folder / "src" / "words").write_text("three\n")
    cli("run", "--ship", "--hold", "--detach", "--name", "held", "--workdir", str(folder), "--", "./src/go.sh")
    s3 = cli.client("s3")
    for stored in s3.list_objects_v2(Bucket="corral-shipped-folders")["Contents"]:
        if stored["Size"] == len("three\n"):
            s3.delete_object(Bucket="corral-shipped-folders", Key=stored["Key"])
    cli("release", "held")
    cli("wait", "held", code=125)
    assert "a part of it is not stored any more" in cli("logs", "held").stdout
    assert not list((cli.data / "node" / "shipped").glob("*.new"))


def test_only_content_with_its_own_digest_as_the_key_is_stored(cli: Cli, tmp_path: Path) -> None:
    """Every caller may send parts of a folder. None can replace a part of others by something else."""
    folder = project(tmp_path / "project")
    shipped(cli, folder)
    content = (folder / "data.bin").read_bytes()
    key, other = sha256(content).hexdigest(), b64encode(sha256(b"other").digest()).decode()
    s3 = cli.client("s3")

    def refused(case: tuple[str, dict[str, str], str]) -> None:
        name, more, code = case
        with pytest.raises(ClientError) as refusal:
            s3.put_object(Bucket="corral-shipped-folders", Key=name, Body=b"other", **more)
        assert refusal.value.response["Error"]["Code"] == code

    own = b64encode(bytes.fromhex(key)).decode()
    check_each(
        [
            (key, {}, "AccessDenied"),
            (key, {"ChecksumSHA256": other}, "AccessDenied"),
            (key, {"ChecksumSHA256": own}, "BadDigest"),
            ("../x", {"ChecksumSHA256": other}, "AccessDenied"),
        ],
        refused,
    )
    assert s3.get_object(Bucket="corral-shipped-folders", Key=key)["Body"].read() == content
