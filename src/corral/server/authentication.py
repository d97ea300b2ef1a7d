"""Authentication: finds the caller of a request by its credentials.

All kinds of credentials are checked here: signatures with access keys (of the root user or of a session), the signed policy of a
browser's form, the registry's password, and the two secrets of a task. All of them except the root user's secret key contain
a seal (`services/sessions.py`), so no check reads a store. The credentials of a task expire when the task stops, and all sessions
can be revoked.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from hmac import compare_digest

from corral import aws
from corral.clock import Clock
from corral.model.session import SessionValidity
from corral.server.registry.errors import Denied
from corral.services import sessions
from corral.services.ecr.registry_passwords import access_of

ENDED_S = 0.0  # the expiry of sessions that ended early
TASKS = "ecs-tasks.amazonaws.com"  # the principal of requests that a task makes with its own secrets
ANONYMOUS = aws.Identity(access_key_id="", principal="*", region="", service="")


class Authentication:
    """Each method checks one kind of credentials and returns the caller's identity.

    For wrong credentials a method either raises the error of the protocol, or returns None and its caller raises the error.
    """

    def __init__(
        self,
        root_key_id: str,
        root: aws.Secret,
        session_key: bytes,
        live_tasks: Container[str],
        clock: Clock,
        validity: SessionValidity | None = None,
    ) -> None:
        self._root_key_id = root_key_id
        self._root = root
        self._session_key = session_key
        self._live_tasks = live_tasks
        self._clock = clock
        self._validity = validity or SessionValidity()

    def signature(self, request: aws.Request, signing_name: str | None = None) -> aws.Identity:
        """Verify the signature of a request whose body is complete."""
        return aws.verify(request, self.secret, self._clock.now_s(), signing_name=signing_name)

    def begin_signature(self, head: aws.Request, signing_name: str | None) -> aws.PendingVerification:
        """Check the signature of a request as far as its head allows. `finish` of the result needs the body."""
        return aws.begin_verification(head, self.secret, self._clock.now_s(), signing_name)

    def head_signature(self, head: aws.Request, signing_name: str) -> tuple[aws.Identity, aws.RequestBody]:
        """Verify the signature of an S3 request, and return the decoder that verifies its body, too."""
        return aws.verify_head(head, self.secret, self._clock.now_s(), signing_name=signing_name)

    def form_policy(self, fields: Mapping[str, str]) -> aws.PostPolicy:
        """Verify the signed policy among the fields of a browser's form."""
        return aws.verify_post_policy(fields, self.secret, self._clock.now_s())

    def registry_password(self, password: str) -> aws.Identity | None:
        """Check a password of `aws ecr get-login-password`, which also contains the region."""
        access = access_of(self._session_key, password)
        if access is None:
            return None
        if self._has_ended(access.task_id, access.epoch) or access.expires_at_s <= self._clock.now_s():
            raise Denied("Your authorization token has expired. Reauthenticate and try again.")
        return aws.Identity("", access.principal, access.region, "ecr", task_id=access.task_id, confined=access.confined)

    def task_token(self, task_id: str, token: str) -> aws.Identity | None:
        """Check a task's AWS_CONTAINER_AUTHORIZATION_TOKEN. Task ids are public, the token is secret."""
        expected = sessions.password_of_task(self._session_key, task_id)
        if not compare_digest(token.encode("utf-8", "replace"), expected.encode()):
            return None
        return aws.Identity("", TASKS, "", "ecs", task_id=task_id)

    def container_address(self, run_id: str, address: str) -> aws.Identity | None:
        """Check the address of a container's metadata, which contains a secret."""
        if not compare_digest(address, sessions.address_of_run(self._session_key, run_id)):
            return None
        return aws.Identity("", TASKS, "", "ecs")

    def secret(self, access_key_id: str, token: str | None) -> aws.Secret | None:
        """Return the secret of an access key; None if the key does not exist."""
        if access_key_id == self._root_key_id:
            return self._root
        found = sessions.read(self._session_key, access_key_id, token) if token else None
        if found is None:
            return None
        session = found.session
        expires_at_s = ENDED_S if self._has_ended(session.task_id, session.epoch) else session.expires_at_s
        return aws.Secret(found.secret_key, token, expires_at_s, session.principal, session.task_id, session.confined)

    def _has_ended(self, task_id: str | None, epoch: str) -> bool:
        """Whether a session ended before its expiry: with its task, by `corral revoke`, or with the root key that created it."""
        if task_id is not None and task_id not in self._live_tasks:
            return True
        return not self._validity.includes(epoch, task_id)
