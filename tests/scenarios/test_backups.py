"""The worst days of a data folder: a lost state.db, a backup under load, on a full disk, and cut off by kill -9; damage that
`corral check` finds. CORRAL_OBJECTS=10000 makes the object stores larger."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from command import Cli
from corral.blobs.blob_lock import hold_blobs
from corral.store import Store
from harness import Corral, container, eventually

OBJECTS = int(os.environ.get("CORRAL_OBJECTS", "60"))
THREADS = 4
BUCKET = "kept"
GROUP, STREAM, NAMESPACE = "/load", "s", "Load"


def content_of(key: str, version: int = 0) -> bytes:
    seed = random.Random(f"{key} {version}")
    return seed.randbytes(seed.choice([1, 10, 3_000, 40_000]))


def fill(corral: Corral, objects: int = OBJECTS) -> None:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    with ThreadPoolExecutor(THREADS) as pool:
        keys = [f"{number:05d}" for number in range(objects)]
        list(pool.map(lambda key: s3.put_object(Bucket=BUCKET, Key=key, Body=content_of(key)), keys))


def assert_filled(corral: Corral, objects: int = OBJECTS) -> None:
    s3 = corral.client("s3")
    with ThreadPoolExecutor(THREADS) as pool:
        keys = [f"{number:05d}" for number in range(objects)]
        bodies = pool.map(lambda key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read(), keys)
    assert all(body == content_of(key) for key, body in zip(keys, bodies))


def files(corral: Corral) -> list[Path]:
    """The blobs that are not in quarantine."""
    return list((corral.data / "blobs").glob("?/?/*"))


def cli_of(corral: Corral, home: Path) -> Cli:
    """The command on this Corral's data folder."""
    home.mkdir(exist_ok=True)
    made = Cli(home)
    made.data = corral.data
    made.environment["CORRAL_DATA"] = str(corral.data)
    return made


def refusal(corral: Corral) -> str:
    before = sorted(corral.data.rglob("*"))
    with pytest.raises(AssertionError, match="did not start"):
        corral.start()
    assert sorted(corral.data.rglob("*")) == before
    return corral.log().rpartition("corral: ")[2]


# Starting anew


def test_no_object_is_lost_with_a_lost_state_db(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral = own_corral("none").start()
    fill(corral)
    corral.client("logs").create_log_group(logGroupName=GROUP)
    corral.client("logs").describe_log_groups()
    corral.stop()
    assert not list(corral.data.glob("*.db-*")), "an orderly stop leaves no write-ahead log"
    blobs = {file.name for file in files(corral)}
    state, away = corral.data / "state.db", tmp_path / "state.db"

    state.rename(away)
    assert "state.db is missing" in (said := refusal(corral)) and "--discard-blobs" in said and "corral restore" in said
    state.touch(mode=0o600)
    assert "state.db is empty" in refusal(corral)
    state.unlink()
    Store(state).close()  # as another start would have left it
    assert "state.db knows no object" in refusal(corral)

    discarding = Corral(corral.data, "none", "--discard-blobs", "true")
    discarding.start()
    try:
        quarantine = corral.data / "blobs" / "quarantine"
        eventually(lambda: {file.name for file in quarantine.glob("*/*")} == blobs, "all blobs are in quarantine")
        assert not files(corral)
        said = cli_of(corral, tmp_path / "home")("status").stdout
        assert f"Quarantine: {len(blobs)} blobs without a row in state.db, moved on 20" in said and f"{quarantine}/20" in said
        discarding.client("s3").create_bucket(Bucket="new")
        discarding.stop()
    finally:
        discarding.clear()

    (quarantine / "2020-01-01").mkdir()
    (quarantine / "2020-01-01" / ("0" * 32)).write_bytes(b"an orphan")
    away.rename(state)
    corral.start()
    assert_filled(corral)
    assert {file.name for file in files(corral)} == blobs
    eventually(lambda: not list(quarantine.glob("*/*")), "what was in quarantine for a week is erased")


def test_a_few_orphans_are_erased_and_no_blob_that_a_backup_needs(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral("none").start()
    fill(corral, 5)
    corral.kill("corral.server")
    for number in range(16):
        (corral.data / "blobs" / "0" / "0" / f"00{number:030x}").write_bytes(b"left by a crash")
    corral.start()
    eventually(lambda: len(files(corral)) == 5, "the orphans are erased")
    assert not (corral.data / "blobs" / "quarantine").exists()
    assert_filled(corral, 5)

    held = hold_blobs(corral.data / "blobs.lock")  # as a backup does
    s3 = corral.client("s3")
    for number in range(5):
        s3.delete_object(Bucket=BUCKET, Key=f"{number:05d}")
    s3.put_object(Bucket=BUCKET, Key="another", Body=b"x")
    assert len(files(corral)) == 6
    os.close(held)
    eventually(lambda: len(files(corral)) == 1, "the garbage is erased after the backup")


# Backups


class Load:
    """Clients that put, overwrite and delete objects, and write log events that a metric filter counts."""

    def __init__(self, corral: Corral) -> None:
        self._corral = corral
        self._stopping = threading.Event()
        self.rounds = 0
        self._threads = [threading.Thread(target=self._objects, args=(at,)) for at in range(2)]
        self._threads.append(threading.Thread(target=self._events))
        logs = corral.client("logs")
        logs.create_log_group(logGroupName=GROUP)
        logs.create_log_stream(logGroupName=GROUP, logStreamName=STREAM)
        counting = {"metricName": "Events", "metricNamespace": NAMESPACE, "metricValue": "1"}
        logs.put_metric_filter(logGroupName=GROUP, filterName="f", filterPattern="", metricTransformations=[counting])

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.rounds > 5)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _objects(self, worker: int) -> None:
        s3, number = self._corral.client("s3"), 0
        while not self._stopping.is_set():
            key = f"load {worker} {number % 20}"
            s3.put_object(Bucket=BUCKET, Key=key, Body=content_of(key, number))
            if number % 3 == 0:
                s3.delete_object(Bucket=BUCKET, Key=key)
            number += 1
            self.rounds += 1

    def _events(self) -> None:
        logs, number = self._corral.client("logs"), 0
        while not self._stopping.is_set():
            events = [{"timestamp": now_ms(), "message": f"event {number}"}]
            logs.put_log_events(logGroupName=GROUP, logStreamName=STREAM, logEvents=events)
            number += 1


def now_ms() -> int:
    return int(time.time() * 1000)


def assert_each_event_counted_once(corral: Corral) -> int:
    """A hand-over takes effect exactly once: the metric counts the events that the log has."""
    logs, metrics = corral.client("logs"), corral.client("cloudwatch")
    events = 0
    for page in logs.get_paginator("filter_log_events").paginate(logGroupName=GROUP):
        events += len(page["events"])
    now_s = now_ms() / 1000
    period = {"StartTime": now_s - 3_600, "EndTime": now_s + 60, "Period": 60, "Statistics": ["Sum"]}
    eventually(
        lambda: (
            sum(
                point["Sum"]
                for point in metrics.get_metric_statistics(Namespace=NAMESPACE, MetricName="Events", **period)["Datapoints"]
            )
            == events
        ),
        f"{events} events are counted once each",
    )
    return events


def test_restore_of_a_backup_under_load(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral, restored = own_corral("sim:1").start(), own_corral("sim:1", "--runtime", "process")
    cli, backup = cli_of(corral, tmp_path / "home"), tmp_path / "backup"
    fill(corral)
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="long", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    [task] = ecs.run_task(taskDefinition="long")["tasks"]
    eventually(lambda: ecs.describe_tasks(tasks=[task["taskArn"]])["tasks"][0]["lastStatus"] == "RUNNING")
    corral.client("ssm").put_parameter(Name="secret", Value="shh", Type="SecureString")
    with Load(corral) as load:
        first = cli.json("backup", str(backup))
        assert first["linked"] >= OBJECTS and first["copied"] == 0
        rounds = load.rounds
        eventually(lambda: load.rounds > rounds + 20)
        second = cli.json("backup", str(backup))
        assert second["present"] >= OBJECTS and second["linked"] <= second["blobs"] - OBJECTS  # only what is new
        rounds = load.rounds
        eventually(lambda: load.rounds > rounds + 20)
    assert not [path for path in (backup, *backup.rglob("*")) if path.stat().st_mode & 0o077]
    assert json.loads((backup / "backup.json").read_text())["blobs"] == second["blobs"] == len(list(backup.glob("blobs/*/*/*")))

    into = ("--data", str(restored.data))
    assert cli.json("restore", str(backup), *into)["blobs"] == second["blobs"]
    assert "is not empty" in cli("restore", str(backup), *into, code=1).stderr
    assert "is in use by corral, process" in cli("restore", str(backup), code=1).stderr
    same_host = cli("up", "--detach", "--port", "0", *into, code=1).stderr
    assert f"restored from a backup of {corral.data}, which is in use" in same_host
    restored.start()
    assert_filled(restored)
    assert assert_each_event_counted_once(restored) > 5
    s3 = restored.client("s3")
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix="load")["Contents"]
    assert listed and all(len(s3.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read()) == each["Size"] for each in listed)
    assert restored.client("ssm").get_parameter(Name="secret", WithDecryption=True)["Parameter"]["Value"] == "shh"
    stopped = restored.client("ecs").describe_tasks
    eventually(lambda: stopped(tasks=[task["taskArn"]])["tasks"][0]["lastStatus"] == "STOPPED", "the task did not move here")
    assert ecs.describe_tasks(tasks=[task["taskArn"]])["tasks"][0]["lastStatus"] == "RUNNING"
    assert {each["level"] for each in cli.json("check", "--deep", *into)} == {"ok"}
    assert {each["level"] for each in cli.json("check", "--deep", str(backup))} == {"ok"}
    assert_each_event_counted_once(corral)


def test_a_backup_in_one_file_and_folders_that_are_refused(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral, restored = own_corral("none").start(), own_corral("none", "--runtime", "process")
    cli, backup = cli_of(corral, tmp_path / "home"), tmp_path / "of today.tar"
    fill(corral, 30)
    assert cli.json("backup", str(backup))["blobs"] == 30
    assert backup.stat().st_mode & 0o777 == 0o600
    corral.stop()
    assert "(30 new)" in cli("backup", str(backup)).stdout  # also without a server; it replaces the first one
    assert not list(corral.data.glob("*.db-*"))
    cut = tmp_path / "cut.tar"
    cut.write_bytes(backup.read_bytes()[: backup.stat().st_size * 2 // 3])
    assert "incomplete" in cli("check", str(cut), code=1).stderr
    assert "incomplete" in cli("restore", str(cut), "--data", str(restored.data), code=1).stderr
    assert not restored.data.exists()
    assert "Start it with" in cli("restore", str(backup), "--data", str(restored.data)).stdout
    restored.start()
    assert_filled(restored, 30)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    assert "is not a backup" in cli("backup", str(mine), code=1).stderr
    assert os.listdir(mine) == ["notes.txt"]
    assert "has no backup.json" in cli("restore", str(mine), "--data", str(tmp_path / "new"), code=1).stderr
    assert "must not contain each other" in cli("backup", str(corral.data / "backup"), code=1).stderr
    cli("backup", str(tmp_path / "backup"))
    shutil.copytree(corral.data, other, ignore=shutil.ignore_patterns("*.sock"))
    (other / "secrets.json").write_text(json.dumps({"key": "ab" * 32}))
    assert "of another data folder" in cli("backup", "--data", str(other), str(tmp_path / "backup"), code=1).stderr
    assert "has no state.db" in cli("backup", "--data", str(tmp_path / "none"), str(tmp_path / "b"), code=1).stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB, if the user is allowed to mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_leaves_the_earlier_backup(own_corral: Callable[..., Corral], small_disk: Path, tmp_path: Path) -> None:
    corral, restored = own_corral("none").start(), own_corral("none", "--runtime", "process")
    cli, backup = cli_of(corral, tmp_path / "home"), small_disk / "backup"
    fill(corral, 20)
    assert cli.json("backup", str(backup))["copied"] == 20
    s3 = corral.client("s3")
    for number in range(8):
        s3.put_object(Bucket=BUCKET, Key=f"large {number}", Body=random.Random(number).randbytes(1_000_000))
    assert "the disk is full" in cli("backup", str(backup), code=1).stderr
    assert "the disk is full" in cli("backup", str(small_disk / "file.tar"), code=1).stderr
    assert sorted(path.name for path in small_disk.iterdir()) == ["backup"]
    assert {each["level"] for each in cli.json("check", "--deep", str(backup))} == {"ok"}
    cli("restore", str(backup), "--data", str(restored.data))
    restored.start()
    assert_filled(restored, 20)


def test_kill_9_of_everything_during_a_backup_and_a_restore(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    """A backup that was cut off is never taken for a whole one, and the earlier one stays whole."""
    corral, backup = own_corral("none").start(), tmp_path / "backup"
    cli = cli_of(corral, tmp_path / "home")
    fill(corral, OBJECTS)
    cut_off = 0
    for lines in (1, 4, 2):
        command = [sys.executable, "-m", "corral.backup", "--do", "save", "--data", str(corral.data), "--backup", str(backup)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as saving:
            assert saving.stdout is not None
            for _ in range(lines):
                saving.stdout.readline()
            saving.kill()
            corral.kill("corral.server", "corral.node", "corral.node.spawner")
        is_whole = (backup / "backup.json").exists()
        cut_off += saving.returncode == -9
        target = ("--data", str(tmp_path / f"restored {lines}"))
        said = cli("restore", str(backup), *target, code=0 if is_whole else 1)
        assert is_whole or "incomplete" in said.stderr
        if is_whole:
            assert {each["level"] for each in cli.json("check", *target)} == {"ok"}
        corral.start()
        if lines == 1:
            cli("backup", str(backup))  # from now on, there is an earlier one
    assert cut_off
    assert cli.json("backup", str(backup))["blobs"] == OBJECTS
    assert len(list(backup.glob("snapshot-*"))) == 1 and not (backup / "arriving").exists()
    assert_filled(corral)

    restored = own_corral("none", "--runtime", "process")
    command = [sys.executable, "-m", "corral.backup", "--do", "restore", "--data", str(restored.data), "--backup", str(backup)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as restoring:
        assert restoring.stdout is not None
        restoring.stdout.readline()
        restoring.kill()
    if (restored.data / "restoring").exists():
        assert "a restore into" in refusal(restored)
        cli("restore", str(backup), "--data", str(restored.data))
    assert {each["level"] for each in cli.json("check", "--data", str(restored.data))} == {"ok"}


# Checks


def test_check_finds_damage(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral = own_corral("none").start()
    cli = cli_of(corral, tmp_path / "home")
    fill(corral, 30)
    cli("backup", str(tmp_path / "backup"))
    assert {each["level"] for each in cli.json("check")} == {"ok"}
    assert "0 failures, 0 warnings" in cli("check", "--deep").stdout

    missing, short, flipped = [file for file in sorted(files(corral)) if file.stat().st_size > 1_000][:3]
    missing.unlink()
    replace_file(short, short.read_bytes()[:-1])
    content = bytearray(flipped.read_bytes())
    content[500] ^= 1
    replace_file(flipped, bytes(content))

    def failures(*words: str) -> str:
        return "\n".join(
            each["found"] for each in json.loads(cli("check", "--json", *words, code=1).stdout) if each["level"] != "ok"
        )

    found = failures()
    assert f"{missing.name} of" in found and "it does not exist" in found and short.name in found and flipped.name not in found
    assert f"{flipped.name} of" in failures("--deep")
    assert "is damaged" in cli("backup", str(tmp_path / "another"), code=1).stderr  # and not taken for a whole one
    assert {each["level"] for each in cli.json("check", "--deep", str(tmp_path / "backup"))} == {"ok"}

    corral.stop()
    orphan = corral.data / "blobs" / "0" / "0" / ("0" * 32)
    orphan.write_bytes(b"")
    assert "no row refers to 1 files" in failures()
    assert not list(corral.data.glob("*.db-*"))
    state = bytearray((corral.data / "state.db").read_bytes())
    for at in range(40_000, 80_000, 100):
        state[at] ^= 0xFF
    (corral.data / "state.db").write_bytes(state)
    assert "state.db" in cli("check", code=1).stdout


def test_check_finds_damage_in_a_tar_file(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral, backup = own_corral("none").start(), tmp_path / "backup.tar"
    cli = cli_of(corral, tmp_path / "home")
    fill(corral, 30)
    cli("backup", str(backup))
    corral.stop()
    whole = cli("check", "--deep", str(backup)).stdout
    assert f"state.db in {backup} is not damaged" in whole and "all 30 blobs" in whole and "0 failures, 0 warnings" in whole

    content = backup.read_bytes()
    body = next(body for number in range(30) if len(body := content_of(f"{number:05d}")) == 40_000)
    flip(backup, content, content.index(body) + 20_000)
    assert "0 failures" in cli("check", str(backup)).stdout, "its size is right"
    assert "differs from the digest in its row" in cli("check", "--deep", str(backup), code=1).stdout
    flip(backup, content, content.index(b"SQLite format 3") + 5_000)
    assert "does not have the SHA-256 in backup.json" in cli("check", str(backup), code=1).stdout
    with tarfile.open(backup, "w") as tar:
        tar.add(corral.data / "state.db", "state.db")
    assert "the backup is incomplete" in cli("check", str(backup), code=1).stdout
    backup.write_text("notes")
    assert "is not a backup" in cli("check", str(backup), code=1).stderr


def flip(path: Path, content: bytes, at: int) -> None:
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def replace_file(path: Path, content: bytes) -> None:
    """As a disk would: a hard link in a backup keeps the old content."""
    path.unlink()
    path.write_bytes(content)
