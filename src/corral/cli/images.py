"""`corral images` lists repositories and their images."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client, find_endpoint
from corral.cli.printing.output import ago, format_bytes, print_json, print_table, print_text, server_time
from corral.cli.runs.completion import complete_repositories

SHORT_DIGEST = 12  # the number of digits after "sha256:", the same as in docker


@click.command(short_help="List repositories and their images.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the images as DescribeImages returns them.")
@click.argument("names", nargs=-1, metavar="[REPOSITORY]...", shell_complete=complete_repositories)
def images(data: DataFolder, as_json: bool, names: tuple[str, ...]) -> None:
    """List the images of all repositories, or of the given ones, in the order in which they were pushed."""
    ecr = client(find_endpoint(data), "ecr")
    wanted = {"repositoryNames": list(names)} if names else {}
    pages = list(ecr.get_paginator("describe_repositories").paginate(**wanted))
    found = {name: _images(ecr, name) for page in pages for name in (each["repositoryName"] for each in page["repositories"])}
    if as_json:
        print_json([image for each in found.values() for image in each])
    elif found:
        _print(found, server_time(pages[-1]))
    else:
        print_text("No repositories. Create one with `corral aws ecr create-repository --repository-name NAME`.")


def _images(ecr: Any, repository: str) -> list[dict[str, Any]]:
    pages = ecr.get_paginator("describe_images").paginate(repositoryName=repository)
    return [image for page in pages for image in page["imageDetails"]]


def _print(found: dict[str, list[dict[str, Any]]], now: datetime | None) -> None:
    rows: list[dict[str, str]] = []
    for repository, images in found.items():
        rows += [
            {
                "REPOSITORY": repository,
                "TAGS": ", ".join(image.get("imageTags", ())),
                "DIGEST": image["imageDigest"].partition(":")[2][:SHORT_DIGEST],
                "SIZE": format_bytes(image["imageSizeInBytes"]),
                "PUSHED": ago(image["imagePushedAt"], now),
            }
            for image in images
        ] or [{"REPOSITORY": repository, "TAGS": "", "DIGEST": "empty", "SIZE": "", "PUSHED": ""}]
    print_table(rows, folded=("REPOSITORY", "TAGS"))
