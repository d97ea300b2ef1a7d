"""The address of Corral in the networks of containers."""

from __future__ import annotations

# Corral's address in every container, except in network mode host. botocore accepts credentials over HTTP from this address.
GATEWAY = "169.254.170.2"
