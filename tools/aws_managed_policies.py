"""Generate src/corral/access/aws_managed_policies.jsonl.gz from the list of AWS's own policies that moto ships.

    pip download --no-deps moto==5.2.5
    python tools/aws_managed_policies.py moto-5.2.5-py3-none-any.whl

The file has one line per policy: its path and name, its default version, its dates and its document, which are AWS's. The first
line says where they come from. Policies of service-linked roles are left out: only AWS's services can use them. So are policies
that name no action of a service in SERVICES: nothing that Corral serves needs them.
"""

from __future__ import annotations

import datetime
import gzip
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

SERVICES = (
    "application-autoscaling autoscaling batch cloudformation cloudwatch ec2 ecr ecs elasticloadbalancing events iam logs s3 "
    "secretsmanager sns sqs ssm sts"
)
SERVICE_LINKED = "/aws-service-role/"
SOURCE = "moto/iam/aws_managed_policies.py"
TARGET = Path(__file__).parent.parent / "src/corral/access/aws_managed_policies.jsonl.gz"


def actions(document: dict[str, Any]) -> set[str]:
    """The services whose actions a document allows or denies; "*" stands for all of them."""
    statements = document["Statement"] if isinstance(document["Statement"], list) else [document["Statement"]]
    found: set[str] = set()
    for statement in statements:
        given = statement.get("Action", "*")  # NotAction concerns all services
        found |= {action.partition(":")[0].lower() for action in ([given] if isinstance(given, str) else given)}
    return found


def main(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(SOURCE).decode()
    listed = json.loads(text.partition('"""')[2].rpartition('"""')[0])
    wanted = {"*", *SERVICES.split()}
    lines = [
        [f"{policy['Path'][1:]}{name}", policy["DefaultVersionId"], policy["CreateDate"], policy["UpdateDate"], policy["Document"]]
        for name, policy in listed.items()
        if policy["Path"] != SERVICE_LINKED and actions(policy["Document"]) & wanted
    ]
    about = {
        "source": f"{SOURCE} of {wheel.name} (Apache-2.0)",
        "generated": datetime.date.today().isoformat(),
        "count": len(lines),
    }
    content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (about, *sorted(lines)))
    TARGET.write_bytes(gzip.compress(content.encode(), 9, mtime=0))
    print(f"{TARGET}: {len(lines)} policies, {TARGET.stat().st_size} bytes, {len(content)} uncompressed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
