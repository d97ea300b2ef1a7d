"""The docker command and engine with the registry, and tasks whose images come from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from containers.running import Containers, shell
from corral.decide.objects.manifest import DOCKER_IMAGE
from corral.model.principal import role_session
from corral.services.ecr.registry_passwords import RegistryAccess, password
from engines.dockerd import BUSYBOX, Dockerd, busybox_files
from harness import REGION, Corral, eventually
from raw_registry import Registry, new_repository, password_of

pytestmark = pytest.mark.xdist_group("docker")

ACCOUNT = "123456789012"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


class Docker:
    """The docker command, logged in to one Corral, with its configuration in a temporary folder."""

    def __init__(self, dockerd: Dockerd, folder: Path, corral: Corral) -> None:
        self._dockerd = dockerd
        self._folder = str(folder)
        self.server = f"localhost:{corral.url.rpartition(':')[2]}"
        self.login(password_of(corral))

    def __call__(self, *arguments: str, data: bytes | None = None) -> str:
        return self._dockerd("--config", self._folder, *arguments, data=data)

    def login(self, password: str) -> None:
        said = self("login", "--username", "AWS", "--password-stdin", self.server, data=password.encode())
        assert said.endswith("Login Succeeded")

    def refused(self, *arguments: str, data: bytes | None = None) -> str:
        """Run a command that fails, and return its error."""
        with pytest.raises(AssertionError) as raised:
            self(*arguments, data=data)
        return str(raised.value)

    def push(self, name: str, tag: str, image: str = BUSYBOX) -> str:
        """Push an image, and return its digest in the registry."""
        self("tag", image, f"{self.server}/{name}:{tag}")
        said = self("push", f"{self.server}/{name}:{tag}")
        return said.rpartition("digest: ")[2].partition(" ")[0]

    def forget(self, name: str) -> None:
        """Remove the image from the engine."""
        ids = self("images", "-q", "--no-trunc", f"{self.server}/{name}").split()
        names = self("inspect", "--format", '{{join .RepoDigests " "}} {{join .RepoTags " "}}', *ids).split()
        self("rmi", *[each for each in names if each.startswith(f"{self.server}/{name}")])


@pytest.fixture
def docker(dockerd: Dockerd, corral: Corral, tmp_path: Path) -> Docker:
    return Docker(dockerd, tmp_path, corral)


@pytest.fixture
def image(dockerd: Dockerd) -> str:
    """An image that no other test has: busybox and a file."""
    name = f"own{uuid4().hex[:12]}:1"
    files, links = busybox_files()
    dockerd.make_image(name, files | {"etc/own": name.encode()}, links)
    return name


def test_push_and_pull(docker: Docker, corral: Corral, image: str):
    name, other = new_repository(corral), new_repository(corral)
    image_id = docker("inspect", "--format", "{{.Id}}", image)
    digest = docker.push(name, "1", image)
    assert "Layer already exists" in docker("push", f"{docker.server}/{name}:1")
    docker("tag", image, f"{docker.server}/{other}:1")
    assert f"Mounted from {name}" in docker("push", f"{docker.server}/{other}:1")
    docker("rmi", image, f"{docker.server}/{other}:1")
    docker.forget(name)
    docker("pull", f"{docker.server}/{name}:1")
    assert docker("inspect", "--format", "{{.Id}}", f"{docker.server}/{name}:1") == image_id
    docker.forget(name)
    docker("pull", f"{docker.server}/{other}@{digest}")
    assert docker("inspect", "--format", "{{.Id}}", f"{docker.server}/{other}@{digest}") == image_id
    [shown] = corral.client("ecr").describe_images(repositoryName=name)["imageDetails"]
    assert (shown["imageDigest"], shown["imageTags"]) == (digest, ["1"])
    assert "Invalid HTTP request" not in corral.log(), "Docker tries TLS before every pull"


def test_the_wrong_password(docker: Docker, corral: Corral):
    name = new_repository(corral)
    assert "401 Unauthorized" in docker.refused("login", "-u", "AWS", "--password-stdin", docker.server, data=b"wrong")
    docker("logout", docker.server)
    docker("tag", BUSYBOX, f"{docker.server}/{name}:1")
    assert "no basic auth credentials" in docker.refused("push", f"{docker.server}/{name}:1")


def test_an_unknown_repository(docker: Docker):
    docker("tag", BUSYBOX, f"{docker.server}/never/made:1")
    said = docker.refused("push", f"{docker.server}/never/made:1")
    why = f"name unknown: The repository with name 'never/made' does not exist in the registry with id '{ACCOUNT}'"
    assert why in said
    assert "aws ecr create-repository --repository-name never/made" in said


def test_an_immutable_tag(docker: Docker, corral: Corral, image: str):
    name = new_repository(corral, imageTagMutability="IMMUTABLE")
    assert docker.push(name, "1") == docker.push(name, "1")
    docker("tag", image, f"{docker.server}/{name}:1")
    assert f"tag invalid: The image tag '1' already exists in the '{name}' repository" in docker.refused(
        "push", f"{docker.server}/{name}:1"
    )


def test_a_list_of_images(docker: Docker, run: Containers, corral: Corral, image: str):
    name = new_repository(corral)
    for tag, each in (("one", image), ("two", BUSYBOX)):
        docker.push(name, tag, each)
    both = f"{docker.server}/{name}:both"
    docker("manifest", "create", "--insecure", both, f"{docker.server}/{name}:one", f"{docker.server}/{name}:two")
    docker("manifest", "annotate", "--arch", "s390x", both, f"{docker.server}/{name}:two")
    digest = docker("manifest", "push", "--insecure", both)
    [container] = run(shell("cat /etc/own", image=f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{name}:both"))["containers"]
    assert (container["exitCode"], container["imageDigest"]) == (0, digest)


@pytest.mark.parametrize("how", ["by its name at ECR", "by its digest there", "by its name here", "by this machine's address"])
def test_a_task(docker: Docker, run: Containers, corral: Corral, image: str, how: str):
    name = new_repository(corral)
    digest = docker.push(name, "v1", image)
    docker("rmi", image)
    docker.forget(name)
    ecr, port = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{name}", docker.server.rpartition(":")[2]
    named = {
        "by its name at ECR": f"{ecr}:v1",
        "by its digest there": f"{ecr}@{digest}",
        "by its name here": f"{docker.server}/{name}:v1",
        "by this machine's address": f"127.0.0.1:{port}/{name}:v1",
    }[how]
    task = run(shell("cat /etc/own", image=named))
    [container] = task["containers"]
    assert run.printed(task) == [image]
    assert (container["exitCode"], container["image"], container["imageDigest"]) == (0, named, digest)
    assert task["pullStartedAt"] <= task["pullStoppedAt"]


def test_one_name_in_two_regions(docker: Docker, run: Containers, corral: Corral, image: str):
    """The name of the image contains the region; the engine's image of the other region is not used."""
    name = new_repository(corral)
    docker.push(name, "latest", image)
    assert run.printed(run(shell("cat /etc/own", image=f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{name}"))) == [image]
    corral.client("ecr", "eu-west-1").create_repository(repositoryName=name)
    there = f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/{name}"
    assert "Requested image not found" in run(shell("cat /etc/own", image=there))["stoppedReason"]
    docker.login(password_of(corral, "eu-west-1"))
    docker.push(name, "latest", BUSYBOX)
    assert run.printed(run(shell("test -e /etc/own || echo not there", image=there))) == ["not there"]


def test_a_tag_that_has_moved(docker: Docker, run: Containers, corral: Corral, image: str):
    """Each task pulls the present image of its tag, although the engine has an image of that name."""
    name = new_repository(corral)
    first = docker.push(name, "v")
    named = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{name}:v"
    assert run(shell("true", image=named))["containers"][0]["imageDigest"] == first
    second = docker.push(name, "v", image)
    assert run(shell("true", image=named))["containers"][0]["imageDigest"] == second != first


def test_a_tag_that_a_container_has_moved(docker: Docker, run: Containers, corral: Corral, image: str):
    """A task that can control the host does not run the image of a container, also if another task has pulled it."""
    iam, name = corral.client("iam"), new_repository(corral)
    iam.create_role(RoleName="pusher", AssumeRolePolicyDocument=json.dumps(TRUST))
    iam.attach_role_policy(RoleName="pusher", PolicyArn="arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryPowerUser")
    key = bytes.fromhex(json.loads((corral.data / "sessions.json").read_text())["key"])
    [holder] = run.start(shell("sleep 300"))
    task_id = run.until(holder)["taskArn"].rpartition("/")[2]
    session = RegistryAccess(role_session(ACCOUNT, "pusher", "s", "root"), REGION, 2**32, task_id, confined=True)
    pusher = Registry(corral, password(key, session))
    docker.push(name, "v")
    docker.push(name, "other", image)
    named = shell("cat /etc/own || true", image=f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{name}:v")
    strong = {**named, "privileged": True}
    assert run(strong)["containers"][0]["exitCode"] == 0
    assert pusher.put(name, "v", Registry(corral)("GET", f"/v2/{name}/manifests/other").body, DOCKER_IMAGE).status == 201
    assert run.printed(run(named)) == [image]
    why = f"assumed-role/pusher/s wrote the tag v of the repository {name} and may not run programs on the host"
    assert why in run(strong)["stoppedReason"]
    docker.push(name, "v", image)
    assert run.printed(run(strong)) == [image]
    run.stop(holder)


def test_deployed_before_its_image_is_pushed(own_docker_corral: Callable[..., Corral], dockerd: Dockerd, tmp_path: Path):
    corral = own_docker_corral("--runtime", "docker").start()
    run, docker, name = Containers(corral), Docker(dockerd, tmp_path / "config", corral), "late/app"
    corral.client("ecr").create_repository(repositoryName="early/app")
    digest = docker.push("early/app", "1")
    by_tag, by_digest = (f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/{name}{reference}" for reference in (":1", f"@{digest}"))
    [other] = run.start(shell("echo came", image=by_digest))
    [arn] = run.start(shell("echo came", image=by_tag))

    def says(words: str) -> bool:
        return words in run.show(arn)["containers"][0].get("reason", "")

    eventually(lambda: says("CannotPullContainerError") and says("aws ecr create-repository --repository-name late/app"))
    corral.client("ecr").create_repository(repositoryName=name)
    eventually(lambda: says("Requested image not found"))
    docker.push(name, "1")
    task = run.until(arn, "STOPPED")
    assert run.printed(task) == run.printed(run.until(other, "STOPPED")) == ["came"]
    assert "reason" not in task["containers"][0]


def test_the_manifest_of_a_pushed_image(docker: Docker, corral: Corral, image: str):
    """Another client reads the same manifest that docker pushed."""
    name = new_repository(corral)
    digest = docker.push(name, "1", image)
    answer = Registry(corral)("GET", f"/v2/{name}/manifests/{digest}")
    assert answer.headers["content-type"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert answer.json["schemaVersion"] == 2
