"""The errors of Corral's own operations, as the command line reads them."""

from __future__ import annotations

import json

from corral.aws.models import OWN_DATA
from corral.cli.client.endpoint import NOT_FOUND


def test_every_error_with_status_404_is_known() -> None:
    """With an unknown one, the command would say that the server is not Corral."""
    [model] = OWN_DATA.glob("corral/*/service-2.json")
    shapes = json.loads(model.read_text())["shapes"]
    assert {name for name, shape in shapes.items() if shape.get("error", {}).get("httpStatusCode") == 404} == set(NOT_FOUND)
