"""Generate src/corral/aws/unserved_services.jsonl.gz from the models of the installed botocore.

    python tools/unserved_services.py

The file has one line per service that Corral does not serve: a JSON list with the members of `UnservedService`, a tab, and a JSON
list of its operations. For a REST service, each operation has its method and its path; for others the list is empty, because
requests contain the name of the operation. Run it after each update of botocore.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from botocore.loaders import Loader

from corral.aws.catalogue import SERVICE_BY_NAME

TARGET = Path(__file__).parent.parent / "src/corral/aws/unserved_services.jsonl.gz"


def line(service: str, model: dict[str, Any]) -> str:
    about = model["metadata"]
    protocols = about.get("protocols") or [about["protocol"]]
    signing_name = about.get("signingName", about["endpointPrefix"])
    operations = [
        [name, operation["http"]["method"], operation["http"]["requestUri"]]
        for name, operation in sorted(model["operations"].items())
        if protocols[0].startswith("rest-")
    ]
    head = [service, signing_name, about["apiVersion"], protocols, about.get("targetPrefix", "")]
    return "\t".join(json.dumps(part, separators=(",", ":")) for part in (head, operations)) + "\n"


def main() -> None:
    services = [name for name in Loader().list_available_services("service-2") if name not in SERVICE_BY_NAME]
    content = "".join(line(name, Loader().load_service_model(name, "service-2")) for name in services)
    TARGET.write_bytes(gzip.compress(content.encode(), 9, mtime=0))
    print(f"{TARGET}: {len(services)} services, {TARGET.stat().st_size} bytes, {len(content)} uncompressed")


if __name__ == "__main__":
    main()
