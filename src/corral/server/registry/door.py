"""Who may come in to the registry, and where to.

The password says who asks and which region's repositories are meant (`services/ecr/access.py`): the address is the same for all.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Container

from corral import aws
from corral.clock import Clock
from corral.errors import ApiError, our_fault
from corral.ids import Ids
from corral.model.settings import Settings
from corral.server.intake import ClientGone, Intake, Receive
from corral.server.lanes import Lane
from corral.server.registry.asked import Asked, page_of, query_of
from corral.server.registry.errors import VERSION, Denied, Unauthorized, Unsupported, refusal
from corral.server.registry.layers import Layers
from corral.server.registry.manifests import Manifests
from corral.services.caller import Caller
from corral.services.ecr.access import USER, Access, access_of
from corral.services.ecr.naming import RepositoryNotFoundException
from corral.store import Store

log = logging.getLogger("corral")
Handler = Callable[[Asked], Awaitable[aws.Response]]


class Registry:
    def __init__(
        self, settings: Settings, state: Lane[Store], clock: Clock, ids: Ids, intake: Intake, live_tasks: Container[str]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._live_tasks = live_tasks
        layers, manifests = Layers(state, settings, ids, intake), Manifests(state, settings, ids)
        self._pages: dict[str, dict[str, Handler]] = {
            "": {"GET": _welcome, "HEAD": _welcome},
            "_catalog": {"GET": manifests.catalog},
            "tags": {"GET": manifests.tags},
            "referrers": {"GET": manifests.referrers},
            "manifests": {
                "HEAD": manifests.show,
                "GET": manifests.read,
                "PUT": manifests.put,
                "DELETE": manifests.delete,
            },
            "blobs": {"HEAD": layers.show, "GET": layers.read, "DELETE": layers.delete},
            "blobs/uploads": {
                "POST": layers.begin,
                "GET": layers.progress,
                "PATCH": layers.send,
                "PUT": layers.finish,
                "DELETE": layers.cancel,
            },
        }

    async def answer(self, head: aws.Request, request_id: str, receive: Receive) -> aws.Response:
        try:
            access = self._admit(head)
            page = page_of(head.path, access.region)
            handler = self._pages[page.kind].get(head.method)
            if handler is None:
                raise Unsupported(f"{head.method} of {head.path} means nothing here.")
            caller = Caller(self._settings.account, access.region, access.principal, task_id=access.task_id)
            return await handler(Asked(head, receive, page, caller, query_of(head.query)))
        except RepositoryNotFoundException as error:
            create = f"aws ecr create-repository --repository-name {page.name} --region {access.region}"
            return refusal(RepositoryNotFoundException(f"{error.message}. Create it with: {create}"))
        except ApiError as error:
            return refusal(error)
        except ClientGone:
            raise
        except Exception:
            log.exception("request %s: %s %s failed", request_id, head.method, head.path)
            return refusal(our_fault())

    def _admit(self, head: aws.Request) -> Access:
        host = head.headers.get("host", "localhost")
        access = access_of(self._settings.session_key, _password(head.headers.get("authorization", "")))
        if access is None:
            login = f"aws ecr get-login-password | docker login --username {USER} --password-stdin {host}"
            error = Unauthorized(f"Log in first: {login}")
            error.headers["WWW-Authenticate"] = f'Basic realm="http://{host}/",service="ecr.amazonaws.com"'
            raise error
        ended = access.task_id is not None and access.task_id not in self._live_tasks
        if ended or access.expires_at_s <= self._clock.now_s():
            raise Denied("Your authorization token has expired. Reauthenticate and try again.")
        return access


async def _welcome(_: Asked) -> aws.Response:
    return aws.Response(200, [VERSION, ("Content-Type", "application/json")], b"{}")


def _password(authorization: str) -> str:
    """Of basic authentication by Docker's user; nothing: it is none."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        user, _, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        return ""
    return password if scheme.lower() == "basic" and user == USER else ""
