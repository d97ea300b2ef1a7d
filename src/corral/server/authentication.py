"""Authentication: who makes a request, by the credentials that it carries.

Every credential is checked here: signatures by access keys (the root user's, or those of a session), the policy of a browser's
form, the registry's password, and the two secrets that only a task knows. All but the root's secret key prove themselves with a
seal (`services/sessions.py`), so a check asks no store. The credentials of a task end with the task.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from hmac import compare_digest

from corral import aws
from corral.clock import Clock
from corral.server.registry.errors import Denied
from corral.services import sessions
from corral.services.ecr.registry_passwords import access_of

ENDED_S = 0.0  # the expiry of a stopped task's sessions
TASKS = "ecs-tasks.amazonaws.com"  # the service principal of requests that a task authenticates with its own secrets
ANONYMOUS = aws.Identity(access_key_id="", principal="*", region="", service="")


class Authentication:
    """Each method returns the identity that some credentials prove.

    For wrong credentials it raises the error of their protocol; where it returns None, its caller does.
    """

    def __init__(self, root_key_id: str, root: aws.Secret, session_key: bytes, live_tasks: Container[str], clock: Clock) -> None:
        self._root_key_id = root_key_id
        self._root = root
        self._session_key = session_key
        self._live_tasks = live_tasks
        self._clock = clock

    def signature(self, request: aws.Request, signing_name: str | None = None) -> aws.Identity:
        """The signature of a request whose body is complete."""
        return aws.verify(request, self.secret, self._clock.now_s(), signing_name=signing_name)

    def head_signature(self, head: aws.Request, signing_name: str) -> tuple[aws.Identity, aws.Body]:
        """The signature of an S3 request, and the decoder that verifies its body."""
        return aws.verify_head(head, self.secret, self._clock.now_s(), signing_name=signing_name)

    def form_policy(self, fields: Mapping[str, str]) -> aws.PostPolicy:
        """The signed policy among the fields of a browser's form."""
        return aws.verify_post_policy(fields, self.secret, self._clock.now_s())

    def registry_password(self, password: str) -> aws.Identity | None:
        """A password of `aws ecr get-login-password`; it carries the region, too."""
        access = access_of(self._session_key, password)
        if access is None:
            return None
        if self._has_ended(access.task_id) or access.expires_at_s <= self._clock.now_s():
            raise Denied("Your authorization token has expired. Reauthenticate and try again.")
        return aws.Identity("", access.principal, access.region, "ecr", task_id=access.task_id)

    def task_token(self, task_id: str, token: str) -> aws.Identity | None:
        """A task's AWS_CONTAINER_AUTHORIZATION_TOKEN. Task ids are public, the token is not."""
        expected = sessions.password_of_task(self._session_key, task_id)
        if not compare_digest(token.encode("utf-8", "replace"), expected.encode()):
            return None
        return aws.Identity("", TASKS, "", "ecs", task_id=task_id)

    def container_address(self, run_id: str, address: str) -> aws.Identity | None:
        """The address of a container's metadata, which cannot be guessed."""
        if not compare_digest(address, sessions.address_of_run(self._session_key, run_id)):
            return None
        return aws.Identity("", TASKS, "", "ecs")

    def secret(self, access_key_id: str, token: str | None) -> aws.Secret | None:
        """What an access key signs with; None if there is no such key."""
        if access_key_id == self._root_key_id:
            return self._root
        found = sessions.read(self._session_key, access_key_id, token) if token else None
        if found is None:
            return None
        session = found.session
        expires_at_s = ENDED_S if self._has_ended(session.task_id) else session.expires_at_s
        return aws.Secret(found.secret_key, token, expires_at_s, session.principal, session.task_id)

    def _has_ended(self, task_id: str | None) -> bool:
        return task_id is not None and task_id not in self._live_tasks
