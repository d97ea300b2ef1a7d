"""The file of a browser's form upload, as a request body. The form fields before the file are read first."""

from __future__ import annotations

from corral.aws.form_upload import FormUpload
from corral.server.http.request_body import Receive, next_piece
from corral.services.s3.errors import entity_too_large, entity_too_small


class FormFile:
    """The file of a form upload, as a request body.

    `begun` contains the bytes of the file that arrived together with the last form field. `more` says whether more bytes follow.
    """

    def __init__(self, form: FormUpload, begun: bytes, more: bool) -> None:
        self.fields = form.fields
        self.filename = form.filename
        self._form = form
        self._begun = begun
        self._more = more
        self._size = 0
        self._min_bytes, self._max_bytes = 0, 0

    def set_bounds(self, min_bytes: int, max_bytes: int) -> None:
        self._min_bytes, self._max_bytes = min_bytes, max_bytes

    def remaining(self, receive: Receive) -> Receive:
        """Return a `receive` function for the rest of the body.

        Its first result has no bytes, because `begun` already holds the bytes that have arrived.
        """
        is_first = True

        async def receive_rest() -> tuple[bytes, bool]:
            nonlocal is_first
            if is_first:
                is_first = False
                return b"", self._more
            return await receive()

        return receive_rest

    def feed(self, data: bytes) -> bytes:
        payload, self._begun = self._begun + self._form.feed(data), b""
        self._size += len(payload)
        if self._size > self._max_bytes:
            raise entity_too_large(self._max_bytes, ProposedSize=self._size)
        return payload

    def finish(self) -> dict[str, str]:
        trailers = self._form.finish()
        if self._size < self._min_bytes:
            raise entity_too_small(self._size, self._min_bytes)
        return trailers


async def read_form(content_type: str, receive: Receive) -> FormFile:
    """Read a form up to the first byte of its file. FormUpload limits the size of the fields."""
    form, more = FormUpload(content_type), True
    begun = b""
    while more and not form.has_file:
        data, more = await next_piece(receive)
        begun = form.feed(data)
    if not form.has_file:
        form.finish()
    return FormFile(form, begun, more)
