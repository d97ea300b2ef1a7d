"""Blobs are files with the bytes of S3 objects and image layers. A blob is complete on disk before a database row refers to it."""

from corral.blobs.blob_writer import BlobWriter
from corral.blobs.files import Blobs, read_slices

__all__ = ["BlobWriter", "Blobs", "read_slices"]
