"""Form uploads in pieces of any size: fields and file are parsed exactly, in bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from urllib3.filepost import encode_multipart_formdata

from corral.aws.form_upload import FIELDS_MAX_BYTES, FormUpload
from corral.core.errors import ApiError
from examples import examples

TYPE = "multipart/form-data; boundary=xyz"


def form(*fields: tuple[str, str], file: bytes | None = b"content", filename: str = "a.txt", after: bytes = b"") -> bytes:
    parts = [f'--xyz\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields]
    if file is not None:
        head = f'--xyz\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\nContent-Type: text/plain\r\n\r\n'
        parts.append(head.encode() + file + b"\r\n")
    return b"".join(parts) + after + b"--xyz--\r\n"


def read(body: bytes, size: int, content_type: str = TYPE) -> tuple[FormUpload, bytes]:
    upload = FormUpload(content_type)
    payload = b"".join(upload.feed(body[at : at + size]) for at in range(0, len(body), size))
    upload.finish()
    return upload, payload


@settings(max_examples=examples(100), deadline=None)
@given(
    st.dictionaries(st.text("abcdefgh-", min_size=1), st.text(max_size=30), max_size=4),
    st.lists(st.sampled_from([b"\r\n", b"--", b"xyz", b"\r", b"\n--xy", b"data"]), max_size=8).map(b"".join),
    st.integers(1, 40),
)
def test_any_form_in_pieces_of_any_size(fields: dict[str, str], file: bytes, size: int) -> None:
    file = file.replace(b"\r\n--xyz", b"")  # a client chooses a boundary that does not occur in the file
    values = {name: value for name, value in fields.items() if "\r\n--" not in value and name != "file"}
    upload, payload = read(form(*values.items(), file=file), size)
    assert upload.fields == {name.lower(): value for name, value in values.items()}
    assert (payload, upload.filename) == (file, "a.txt")


def test_a_form_of_a_real_client() -> None:
    fields = {
        "Key": "ü ${filename}",
        "policy": "cG9saWN5",
        "file": ("C:\\dir\\my file.bin", b"\0\r\n--" * 1000, "application/x-thing"),
    }
    body, content_type = encode_multipart_formdata(fields)
    upload, payload = read(body, 777, content_type)
    assert upload.fields == {"key": "ü ${filename}", "policy": "cG9saWN5"}
    assert (payload, upload.filename) == (b"\0\r\n--" * 1000, "my file.bin")


def test_fields_after_the_file_are_ignored() -> None:
    late = b'--xyz\r\nContent-Disposition: form-data; name="acl"\r\n\r\npublic-read\r\n'
    upload, payload = read(form(("key", "a"), after=late), 10)
    assert (upload.fields, payload) == ({"key": "a"}, b"content")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (form(("key", "a"), file=None), "IncorrectNumberOfFilesInPostRequest"),
        (b"", "IncorrectNumberOfFilesInPostRequest"),
        (form(("key", "a"))[:-12], "MalformedPOSTRequest"),  # ends inside the file
        (b"--xyz\r\nContent-Type: text/plain\r\n\r\nx\r\n--xyz--\r\n", "MalformedPOSTRequest"),
        (b"--xyz\r\nContent-Disposition: attachment\r\n\r\nx\r\n--xyz--\r\n", "MalformedPOSTRequest"),
        (b"--xyz\r\nX: " + b"y" * 5000, "MalformedPOSTRequest"),
        (b'--xyz\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\r\n--xyz--\r\n', "MalformedPOSTRequest"),
        (form(("key", "a" * FIELDS_MAX_BYTES)), "MaxPostPreDataLengthExceededError"),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_malformed_forms_are_refused(body: bytes, code: str, size: int) -> None:
    with pytest.raises(ApiError) as refused:
        read(body, size)
    assert refused.value.code == code


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_the_fields_and_boundaries_before_the_file_have_a_limit(size: int) -> None:
    rest = form(("key", "")).index(b"content")
    largest = "a" * (FIELDS_MAX_BYTES - rest)
    upload, payload = read(form(("key", largest), file=b"x" * 50_000), size)
    assert (upload.fields, len(payload)) == ({"key": largest}, 50_000)
    with pytest.raises(ApiError) as refused:
        read(form(("key", largest + "a")), size)
    assert refused.value.code == "MaxPostPreDataLengthExceededError"


@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data", "multipart/form-data; boundary=", ""])
def test_other_content_types_are_refused(content_type: str) -> None:
    with pytest.raises(ApiError) as refused:
        FormUpload(content_type)
    assert refused.value.code == "PreconditionFailed"


@pytest.mark.parametrize("content_type", ['multipart/form-data; boundary="xyz"', "Multipart/Form-Data;charset=utf-8; BOUNDARY=xyz"])
def test_ways_to_write_a_boundary(content_type: str) -> None:
    assert read(form(("key", "a")), 5, content_type)[1] == b"content"
