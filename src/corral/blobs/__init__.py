"""Blobs: bytes that are streamed to files. A blob is synced and renamed before a row refers to it. Knows nothing of S3."""

from corral.blobs.blob_writer import BlobWriter
from corral.blobs.files import Blobs

__all__ = ["BlobWriter", "Blobs"]
