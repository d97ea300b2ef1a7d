"""AWS's public parameters with the ids of machine images (AMIs). CloudFormation templates read them.

Corral starts no machine from an image, so the ids are invented. They are the same in every installation and differ between
regions. They begin with `ami-c044a1`, so that users can tell them from ids of AWS.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import orjson

from corral.model.parameter import Parameter

ROOT = "/aws/service/"
ECS = "/aws/service/ecs/optimized-ami/"
LINUX = "/aws/service/ami-amazon-linux-latest/"
ID_PREFIX = "ami-c044a1"
PUBLISHED_AT_S = 1_735_689_600.0  # 2025-01-01. The date is fixed, because these parameters never change

# Variant of the ECS-optimized image → operating system in its `recommended` parameter.
ECS_VARIANTS = {
    "amazon-linux": "Amazon Linux AMI release 2018.03",
    **{
        f"amazon-linux-2{kernel}{kind}": "Amazon Linux 2"
        for kernel in ("", "/kernel-5.10")
        for kind in ("", "/arm64", "/gpu", "/inf")
    },
    **{f"amazon-linux-2023{kind}": "Amazon Linux 2023" for kind in ("", "/arm64", "/gpu", "/arm64/gpu", "/neuron")},
}
LINUX_IMAGES = (
    "amzn-ami-hvm-x86_64-ebs", "amzn-ami-hvm-x86_64-gp2",
    "amzn2-ami-hvm-x86_64-ebs", "amzn2-ami-hvm-x86_64-gp2", "amzn2-ami-hvm-arm64-gp2",
    "amzn2-ami-kernel-5.10-hvm-x86_64-ebs", "amzn2-ami-kernel-5.10-hvm-x86_64-gp2", "amzn2-ami-kernel-5.10-hvm-arm64-gp2",
    "amzn2-ami-minimal-hvm-x86_64-ebs", "amzn2-ami-minimal-hvm-arm64-ebs",
    "al2023-ami-kernel-default-x86_64", "al2023-ami-kernel-default-arm64",
    "al2023-ami-kernel-6.1-x86_64", "al2023-ami-kernel-6.1-arm64",
    "al2023-ami-minimal-kernel-default-x86_64", "al2023-ami-minimal-kernel-default-arm64",
)  # fmt: skip


def is_public(name: str) -> bool:
    return name.startswith(ROOT)


def find(region: str, name: str) -> Parameter | None:
    return _all(region).get(name)


def under(region: str, prefix: str) -> list[Parameter]:
    """The parameters whose names begin with the prefix, sorted by name."""
    return [parameter for name, parameter in _all(region).items() if name.startswith(prefix)]


@lru_cache(maxsize=32)
def _all(region: str) -> dict[str, Parameter]:
    values = {f"{LINUX}{image}": _image_id(region, image) for image in LINUX_IMAGES}
    for variant, system in ECS_VARIANTS.items():
        about = {
            "ecs_agent_version": "1.0.0",
            "ecs_runtime_version": "Corral",
            "image_id": _image_id(region, variant),
            "image_name": f"corral-{variant.replace('/', '-')}",
            "image_version": "1",
            "os": system,
            "schema_version": 1,
            "source_image_name": f"corral-{variant.partition('/')[0]}",
        }
        values[f"{ECS}{variant}/recommended"] = orjson.dumps(about).decode()
        values |= {f"{ECS}{variant}/recommended/{member}": str(value) for member, value in about.items()}
    return {name: _parameter(region, name, values[name]) for name in sorted(values)}


def _parameter(region: str, name: str, value: str) -> Parameter:
    kind = "aws:ec2:image" if value.startswith("ami-") else "text"
    return Parameter(region, name, 1, "String", value, PUBLISHED_AT_S, "", {"DataType": kind, "Tier": "Standard"})


def _image_id(region: str, image: str) -> str:
    return ID_PREFIX + sha256(f"{region}/{image}".encode()).hexdigest()[:11]
