"""Receives the signals of wait conditions and the responses of custom resources of CloudFormation.

Each of them is a PUT to a URL that Corral has given to the sender. The URL contains a secret, so the request needs no signature.
"""

from __future__ import annotations

from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.json_documents import read_json
from corral.model.principal import acting_service
from corral.model.settings import Settings
from corral.server.authentication import Authentication
from corral.server.lanes import Lane
from corral.store import Store

CUSTOM_RESOURCES = "/cloudformation-custom-resource/"
PREFIXES = ("/cloudformation-waitcondition/", CUSTOM_RESOURCES)
CLOUDFORMATION = acting_service("", "cloudformation.amazonaws.com", "")  # the principal of these requests

NotFound = api_error("NotFound", 404)
Forbidden = api_error("Forbidden", 403)
MethodNotAllowed = api_error("MethodNotAllowed", 405)


class WaitHandles:
    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids) -> None:
        self.state = state
        self.settings = settings
        self.ids = ids

    def exchange(self, request: aws.Request) -> SignalRequest:
        is_response = request.path.startswith(CUSTOM_RESOURCES)
        return CustomResourceResponse(request, self) if is_response else SignalRequest(request, self)


class SignalRequest(Struct, eq=False):
    request: aws.Request
    handles: WaitHandles
    action: str = "cloudformation:SignalWaitCondition"
    region: str = ""
    secret: str = ""

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        from corral.services.cloudformation import wait_conditions  # imported here, so that the server starts faster

        found = wait_conditions.SIGNAL_PATH.fullmatch(self.request.path)
        handles = self.handles
        if found is None or not handles.state.read_now(
            lambda tx: wait_conditions.handle_exists(tx, found[1], found[2]), handles.settings, handles.ids
        ):
            raise NotFound("There is no wait condition handle at this URL.")
        self.region, self.secret = found[1], found[2]
        return aws.Identity("", CLOUDFORMATION, self.region, "cloudformation")

    def required(self, caller: Caller) -> None:
        return None

    def denied(self, message: str) -> ApiError:
        return Forbidden(message)

    async def run(self, caller: Caller) -> aws.Response:
        from corral.services.cloudformation.wait_conditions import InvalidSignal, receive_signal

        if self.request.method != "PUT":
            raise MethodNotAllowed(f"{self.request.method} is not served here; use PUT.")
        try:
            signal = read_json(self.request.body)
        except ValueError:
            raise InvalidSignal("The body is not valid JSON.") from None

        def receive(tx: Tx[Store]) -> None:
            receive_signal(tx, self.region, self.secret, signal)

        await self.handles.state.submit(receive)
        return aws.Response(200, [], b"")

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.Response(error.status, [("content-type", "text/plain")], f"{error.code}: {error.message}\n".encode())


class CustomResourceResponse(SignalRequest):
    action: str = "cloudformation:RespondToCustomResource"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        from corral.services.cloudformation import custom_resources  # imported here, so that the server starts faster

        found = custom_resources.RESPONSE_PATH.fullmatch(self.request.path)
        handles = self.handles
        if found is None or not handles.state.read_now(
            lambda tx: custom_resources.request_exists(tx, found[1], found[2]), handles.settings, handles.ids
        ):
            raise NotFound("No custom resource waits for a response at this URL.")
        self.region, self.secret = found[1], found[2]
        return aws.Identity("", CLOUDFORMATION, self.region, "cloudformation")

    async def run(self, caller: Caller) -> aws.Response:
        from corral.services.cloudformation.custom_resources import receive_response

        if self.request.method != "PUT":
            raise MethodNotAllowed(f"{self.request.method} is not served here; use PUT.")
        body = self.request.body
        await self.handles.state.submit(lambda tx: receive_response(tx, self.region, self.secret, body))
        return aws.Response(200, [], b"")
