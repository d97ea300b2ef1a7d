"""`corral login` and `corral images`."""

from __future__ import annotations

import json
from pathlib import Path

from command import BIN, Cli
from corral.services.ecr.registry_passwords import access_of

STAND_IN = """#!/bin/sh
# Records the arguments and the input of docker.
echo "$@" > "$TOLD/words"
cat > "$TOLD/input"
exit "${CODE:-0}"
"""


def test_login_hands_docker_a_password_and_ends_as_docker_does(cli: Cli, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(STAND_IN)
    docker.chmod(0o755)
    told = {"PATH": f"{tmp_path}:{cli.environment['PATH']}", "TOLD": str(tmp_path)}
    said = cli("login", env=told).stderr
    port = json.loads((cli.data / "server.json").read_text())["url"].rpartition(":")[2]
    assert (tmp_path / "words").read_text().split() == ["login", "--username", "AWS", "--password-stdin", f"localhost:{port}"]
    key = bytes.fromhex(json.loads((cli.data / "sessions.json").read_text())["key"])
    given = access_of(key, (tmp_path / "input").read_text())
    assert given is not None and given.region == "us-east-1"
    assert f"localhost:{port}/REPOSITORY:TAG" in said and "us-east-1" in said
    assert "REPOSITORY" not in cli("login", env={**told, "CODE": "3"}, code=3).stderr


def test_login_without_docker_says_so(cli: Cli) -> None:
    assert "docker is not on PATH" in cli("login", env={"PATH": str(BIN)}, code=1).stderr


def test_images_are_listed(cli: Cli) -> None:
    assert "create-repository" in cli("images").stdout
    ecr = cli.client("ecr")
    for name in ("team/train", "empty"):
        ecr.create_repository(repositoryName=name)
    manifest = json.dumps({"schemaVersion": 2, "manifests": []})
    for tag in ("v1", "latest"):
        digest = ecr.put_image(repositoryName="team/train", imageManifest=manifest, imageTag=tag)["image"]["imageId"]["imageDigest"]
    head, empty, train = cli("images").stdout.splitlines()
    assert head.split() == ["REPOSITORY", "TAGS", "DIGEST", "SIZE", "PUSHED"]
    assert empty.split() == ["empty", "empty"]
    assert train.split()[:6] == ["team/train", "latest,", "v1", digest[7:19], "0", "B"]
    [image] = cli.json("images", "team/train")
    assert image["imageDigest"] == digest and image["imageTags"] == ["latest", "v1"]
    assert "nothing" in cli("images", "nothing", code=1).stderr
