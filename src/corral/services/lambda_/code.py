"""The code of functions: zip files, in the request or in Corral's own S3.

Zip files are read, checked and made in other threads: for a request before the handler runs (`fetch`, `prepare`), for a stack when
its step needs the code (`Tx.result_of`).
"""

from __future__ import annotations

import io
import stat
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from msgspec import Struct

from corral.access.caller import Caller
from corral.access.object_writers import writer_refusal
from corral.blobs import read_slices
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.blob import Slice
from corral.services.lambda_.errors import InvalidParameterValueException
from corral.services.s3.lookup import existing_bucket, existing_version
from corral.store import Store

ZIP_MAX_BYTES = 50 * 1024 * 1024
UNZIPPED_MAX_BYTES = 262_144_000
INLINE_MAX_BYTES = 4 * 1024 * 1024
CODE, OBJECT = "_code", "_zip"  # Corral's own members of a request: the checked code, and the bytes of the object in S3
CFN_RESPONSE = Path(__file__).parents[2] / "functions" / "cfnresponse.py"
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the time of all files in a zip file that Corral creates, so that equal code has equal hashes

NO_SOURCE = "Please provide a source for function code."
TWO_SOURCES = "Please do not provide other FunctionCode parameters when providing a ZipFile."
NO_ZIP = "Could not unzip uploaded file. Please check your file, then try to upload again."
NO_IMAGES = (
    "Corral runs no container images as Lambda functions: give a zip file with Python code, or run the image as an ECS task."
)
S3_ERROR = "Error occurred while GetObject. S3 Error Code: {}. S3 Error Message: {}"


class Code(Struct, frozen=True):
    zip: bytes
    sha256: str  # in base64

    @property
    def size(self) -> int:
        return len(self.zip)


def fetch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, tuple[Slice, ...]]:
    """Return the slices of the S3 object that contains the code of a request. The result is empty if the code is not in S3."""
    source = _source(params)
    return {OBJECT: object_slices(tx, caller, source)} if "S3Bucket" in source and "ZipFile" not in source else {}


def prepare(params: dict[str, Any]) -> dict[str, Any]:
    """Check the zip file of a request, and add its code to the request as the member CODE. A stack has done both."""
    source = _source(params)
    if CODE in params:
        return params
    if "ImageUri" in source:
        raise InvalidParameterValueException(NO_IMAGES)
    if "ZipFile" in source and ("S3Bucket" in source or "S3Key" in source):
        raise InvalidParameterValueException(TWO_SOURCES)
    found = params.get(OBJECT, source.get("ZipFile"))
    if found is None:
        raise InvalidParameterValueException(NO_SOURCE)
    return {**params, CODE: checked_code(found)}


def _source(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the members that name the code. CreateFunction has them in `Code`, UpdateFunctionCode at the top level."""
    source: Mapping[str, Any] = params.get("Code", params)
    return source


def checked_code(content: bytes) -> Code:
    if len(content) > ZIP_MAX_BYTES:
        raise InvalidParameterValueException(f"The zip file has {len(content)} bytes. Corral accepts at most {ZIP_MAX_BYTES}.")
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            files = [each for each in archive.infolist() if not each.is_dir()]
            if not files:
                raise InvalidParameterValueException("Uploaded file must be a non-empty zip")
            if sum(each.file_size for each in files) > UNZIPPED_MAX_BYTES:
                raise InvalidParameterValueException(f"Unzipped size must be smaller than {UNZIPPED_MAX_BYTES} bytes")
            if any(each.flag_bits & 1 for each in files):
                raise InvalidParameterValueException("Could not unzip uploaded file: it is encrypted.")
    except (BadZipFile, NotImplementedError, ValueError, OSError):
        raise InvalidParameterValueException(NO_ZIP) from None
    return Code(content, b64encode(sha256(content).digest()).decode())


def object_slices(tx: Tx[Store], caller: Caller, source: Mapping[str, Any]) -> tuple[Slice, ...]:
    """Return the slices of the S3 object that contains the code. The permission to read the object was checked before."""
    try:
        bucket = existing_bucket(tx, {"Bucket": source["S3Bucket"]}, caller)
        version = existing_version(tx, bucket, source.get("S3Key", ""), source.get("S3ObjectVersion"))
    except ApiError as error:
        raise InvalidParameterValueException(S3_ERROR.format(error.code, error.message)) from None
    if (
        version.writers and (refusal := writer_refusal(tx, f"s3://{bucket.name}/{version.key}", version.writers)) is not None
    ):  # a function runs on the host
        raise InvalidParameterValueException(S3_ERROR.format("AccessDenied", refusal))
    if version.size > ZIP_MAX_BYTES:
        raise InvalidParameterValueException(f"The object has {version.size} bytes. Corral accepts at most {ZIP_MAX_BYTES}.")
    return tuple(tx.store.objects.slices(version.content, 0, version.size)) if version.content is not None else ()


def object_code(tx: Tx[Store], caller: Caller, source: Mapping[str, Any]) -> Code:
    """Return the code of a stack's function from its S3 object."""
    slices, folder = object_slices(tx, caller, source), tx.settings.blobs_folder
    return tx.result_of(("code", slices), lambda: checked_code(read_slices(folder, slices)))


def inline_code(tx: Tx[Store], text: str, file: str) -> Code:
    """Return the code of a stack's function whose text is in the template itself."""
    return tx.result_of(("code", text, file), lambda: checked_code(inline_zip(text, file)))


def inline_zip(text: str, file: str = "index.py") -> bytes:
    """Make the zip file of a function whose code is in the template itself: one file, and the module cfnresponse."""
    if len(text.encode()) > INLINE_MAX_BYTES:
        raise InvalidParameterValueException(f"Code.ZipFile has more than {INLINE_MAX_BYTES} bytes: put the code into S3.")
    made = io.BytesIO()
    with ZipFile(made, "w", ZIP_DEFLATED) as archive:
        for name, content in ((file, text), ("cfnresponse.py", CFN_RESPONSE.read_text())):
            entry = ZipInfo(name, LONG_AGO)
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, content)
    return made.getvalue()
