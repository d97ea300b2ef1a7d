"""Image names that refer to this registry, and how a host pulls them."""

from __future__ import annotations

from base64 import urlsafe_b64decode

import orjson
import pytest

from corral.model.settings import Settings
from corral.services.ecr.image_names import pull_from_here
from corral.services.ecr.registry_passwords import access_of

SETTINGS = Settings(account="123456789012", endpoint_url="http://127.0.0.1:4566")
OURS = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("image", "name", "region"),
    [
        (f"{OURS}/app", "app", "eu-west-1"),
        (f"{OURS}/team/app:v1", "team/app:v1", "eu-west-1"),
        (f"{OURS}/app@sha256:{'0' * 64}", f"app@sha256:{'0' * 64}", "eu-west-1"),
        ("123456789012.dkr-ecr.eu-west-1.on.aws/app", "app", "eu-west-1"),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/app", "app", "us-gov-west-1"),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/app", "app", "cn-north-1"),
        ("localhost:4566/app:v1", "app:v1", "us-east-1"),
        ("127.0.0.1:4566/app", "app", "us-east-1"),
    ],
)
def test_names_of_this_registry(image: str, name: str, region: str) -> None:
    pull = pull_from_here(SETTINGS, image, "us-east-1", 1_000_000.0)
    assert pull is not None
    assert pull.image == f"localhost:4566/ecr.{region}/{name}"
    auth = orjson.loads(urlsafe_b64decode(pull.auth))
    assert (auth["username"], auth["serveraddress"]) == ("AWS", "localhost:4566")
    access = access_of(SETTINGS.session_key, auth["password"])
    assert access is not None
    assert (access.region, access.task_id) == (region, None)
    assert access.expires_at_s >= 1_000_000 + 12 * 3600


@pytest.mark.parametrize(
    "image",
    [
        "app",
        "busybox:1",
        "999999999999.dkr.ecr.eu-west-1.amazonaws.com/app",
        "public.ecr.aws/123456789012/app",
        f"{OURS}.example.com/app",
        f"mirror/{OURS}/app",
        f"{OURS}/",
        "localhost/app",
        "localhost:5000/app",
        "localhost:45660/app",
        "localhost:4566",
        "corral/host",
    ],
)
def test_names_of_other_registries(image: str) -> None:
    assert pull_from_here(SETTINGS, image, "us-east-1", 0.0) is None


def test_pulls_at_the_same_time_use_the_same_password() -> None:
    """A host joins pulls that have the same image name and password."""
    assert pull_from_here(SETTINGS, f"{OURS}/app", "x", 7200.0) == pull_from_here(SETTINGS, f"{OURS}/app", "y", 7300.0)
    assert pull_from_here(SETTINGS, "localhost:4566/app", "x", 0.0) != pull_from_here(SETTINGS, "localhost:4566/app", "y", 0.0)
