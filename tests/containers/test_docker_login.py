"""Docker logs in as `corral login` and CDK do, and pushes to the address that ECR returns."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode
from pathlib import Path

import boto3
import pytest

from command import Cli
from engines.dockerd import BUSYBOX, Dockerd

pytestmark = pytest.mark.xdist_group("docker")


def test_docker_pushes_to_the_address_that_ecr_returns(cli: Cli, dockerd: Dockerd, tmp_path: Path):
    ecr = cli.client("ecr")
    uri = ecr.create_repository(repositoryName="team/train")["repository"]["repositoryUri"]

    def docker(config: str, *words: str, given: str | None = None) -> int:
        environment = {**os.environ, "DOCKER_HOST": dockerd.host, "DOCKER_CONFIG": str(tmp_path / config)}
        return subprocess.run(["docker", *words], env=environment, input=given, text=True, capture_output=True).returncode

    assert docker("people", "tag", BUSYBOX, f"{uri}:v1") == 0
    assert docker("people", "push", f"{uri}:v1") != 0, "no login yet"
    cli("login", env={"DOCKER_HOST": dockerd.host, "DOCKER_CONFIG": str(tmp_path / "people")})
    assert docker("people", "push", f"{uri}:v1") == 0

    [given] = ecr.get_authorization_token()["authorizationData"]
    user, _, password = b64decode(given["authorizationToken"]).decode().partition(":")
    assert docker("cdk", "login", "--username", user, "--password-stdin", given["proxyEndpoint"], given=password) == 0
    assert docker("cdk", "tag", BUSYBOX, f"{uri}:v2") == 0 and docker("cdk", "push", f"{uri}:v2") == 0

    [image] = ecr.describe_images(repositoryName="team/train")["imageDetails"]
    assert image["imageTags"] == ["v1", "v2"] and image["imageSizeInBytes"] > 100_000
    assert image["artifactMediaType"] == "application/vnd.docker.container.image.v1+json"
    assert "v1, v2" in cli("images").stdout


def test_a_user_pushes_and_pulls_only_what_is_its_own(cli: Cli, dockerd: Dockerd, tmp_path: Path):
    iam, ecr = cli.client("iam"), cli.client("ecr")
    iam.create_user(UserName="una")
    iam.add_user_to_group(GroupName="users", UserName="una")
    key = iam.create_access_key(UserName="una")["AccessKey"]
    keys = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    of_una = boto3.client("ecr", endpoint_url=ecr.meta.endpoint_url, region_name="us-east-1", **keys)
    uris = {
        name: client.create_repository(repositoryName=name)["repository"]["repositoryUri"]
        for name, client in (("of-root", ecr), ("of-una", of_una))
    }

    def docker(person: str, *words: str, given: str | None = None) -> tuple[int, str]:
        environment = {**os.environ, "DOCKER_HOST": dockerd.host, "DOCKER_CONFIG": str(tmp_path / person)}
        done = subprocess.run(["docker", *words], env=environment, input=given, text=True, capture_output=True)
        return done.returncode, done.stderr

    for person, client in (("root", ecr), ("una", of_una)):
        [about] = client.get_authorization_token()["authorizationData"]
        user, _, password = b64decode(about["authorizationToken"]).decode().partition(":")
        assert docker(person, "login", "--username", user, "--password-stdin", about["proxyEndpoint"], given=password)[0] == 0
    for uri in uris.values():
        dockerd("tag", BUSYBOX, f"{uri}:v1")
    assert docker("root", "push", f"{uris['of-root']}:v1")[0] == 0 == docker("una", "push", f"{uris['of-una']}:v1")[0]
    assert docker("una", "pull", f"{uris['of-una']}:v1")[0] == 0
    for verb in ("push", "pull"):
        code, said = docker("una", verb, f"{uris['of-root']}:v1")
        assert code != 0 and "not authorized to perform: ecr:" in said, f"{verb}: {said}"
    assert [each["imageTags"] for each in ecr.describe_images(repositoryName="of-root")["imageDetails"]] == [["v1"]]


def test_uninstall_removes_unused_networks_and_the_login(own: Cli, dockerd: Dockerd, tmp_path: Path):
    own.environment |= {"DOCKER_HOST": dockerd.host, "DOCKER_CONFIG": str(tmp_path)}
    logins = {"localhost:4566": {"auth": "QVdTOnNlY3JldA=="}, "example.com": {"auth": "bWU6c2VjcmV0"}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": logins}))
    names = ("corral", "corral-inside")
    for name in set(names) - set(dockerd("network", "ls", "--format", "{{.Name}}").split()):
        dockerd("network", "create", name)
    if left := dockerd("ps", "--all", "--quiet", "--filter", "network=corral").split():  # of tests whose agent was killed
        dockerd("rm", "--force", *left)
    user = dockerd("run", "--detach", "--network", "corral", BUSYBOX, "sleep", "600").strip()
    try:
        listed = own.json("uninstall", "--dry-run")
    finally:
        dockerd("rm", "--force", user)
    assert ("Docker network", "corral") in [(each["kind"], each["name"]) for each in listed["kept"]]
    assert ("Docker network", "corral") not in [(each["kind"], each["name"]) for each in listed["toBeRemoved"]]
    removed = own.json("uninstall", "--yes")["removed"]
    expected = [*(("Docker network", name) for name in names), ("Docker login", "localhost:4566")]
    assert [(each["kind"], each["name"]) for each in removed] == expected
    assert not set(names) & set(dockerd("network", "ls", "--format", "{{.Name}}").split())
    assert list(json.loads((tmp_path / "config.json").read_text())["auths"]) == ["example.com"]
