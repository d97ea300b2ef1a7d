"""Form uploads on their way in: their fields are read first, then the file goes where every body goes."""

from __future__ import annotations

from typing import Any

from corral.aws.form_upload import FormUpload
from corral.errors import api_error
from corral.server.intake import Receive, next_piece

EntityTooLarge = api_error("EntityTooLarge")
EntityTooSmall = api_error("EntityTooSmall")


class FormFile:
    """The file of a form, as a body: what came with the last of the fields is its beginning."""

    def __init__(self, form: FormUpload, begun: bytes, more: bool) -> None:
        self.fields = form.fields
        self.filename = form.filename
        self._form = form
        self._begun = begun
        self._more = more
        self._size = 0
        self._least, self._most = 0, 0

    def allow(self, least: int, most: int) -> None:
        """So many bytes, no fewer and no more."""
        self._least, self._most = least, most

    def receiving(self, receive: Receive) -> Receive:
        """What is still to come; the first piece of it is here already."""
        is_first = True

        async def receive_rest() -> dict[str, Any]:
            nonlocal is_first
            if is_first:
                is_first = False
                return {"type": "http.request", "body": b"", "more_body": self._more}
            return await receive()

        return receive_rest

    def feed(self, data: bytes) -> bytes:
        payload, self._begun = self._begun + self._form.feed(data), b""
        self._size += len(payload)
        if self._size > self._most:
            message = "Your proposed upload exceeds the maximum allowed size"
            raise EntityTooLarge(message, ProposedSize=self._size, MaxSizeAllowed=self._most)
        return payload

    def finish(self) -> dict[str, str]:
        trailers = self._form.finish()
        if self._size < self._least:
            message = "Your proposed upload is smaller than the minimum allowed size"
            raise EntityTooSmall(message, ProposedSize=self._size, MinSizeAllowed=self._least)
        return trailers


async def read_form(content_type: str, receive: Receive) -> FormFile:
    """The fields of a form: bounded, and all of them before the file."""
    form, more = FormUpload(content_type), True
    begun = b""
    while more and not form.has_file:
        data, more = await next_piece(receive)
        begun = form.feed(data)
    if not form.has_file:
        form.finish()
    return FormFile(form, begun, more)
