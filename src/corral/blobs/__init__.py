"""Bytes that stream: written, fsynced, renamed, and only then committed by a row of somebody's. Of S3 it knows nothing."""

from corral.blobs.arriving import Arriving
from corral.blobs.files import Blobs

__all__ = ["Arriving", "Blobs"]
