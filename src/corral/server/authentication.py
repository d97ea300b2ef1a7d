"""Authentication: finds the caller of a request by its credentials. All kinds of credentials are checked in this module.

The kinds are: a signature with an access key (of the root user, of a user of IAM or of a session), the signed policy of a browser
form, the password of the registry, the token for `/metrics`, and two secrets of a task: its authorization token and its metadata
URL. No check reads a database: the keys of users are in memory (`store/iam_index.py`), and Corral derives every other secret except
the root user's key from a key of its own (`access/sessions.py`). The tokens of sessions and the passwords of the registry also
contain the caller and the expiry time. The credentials of a task expire when the task stops. The root user can revoke all sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from hmac import compare_digest

from corral import aws
from corral.access import sessions
from corral.core.clock import Clock
from corral.model import principal
from corral.model.access_key import ACTIVE, AccessKey
from corral.model.session import SessionValidity
from corral.server.registry.errors import Denied
from corral.services.ecr.registry_passwords import access_of
from corral.store.iam_index import IamIndex, LiveUser

USER_SECRETS_MAX = 10_000
ENDED_S = 0.0  # the expiry time of a session that has ended early: a time in the past
# The principals of requests that a task authenticates with its own secrets, of requests with the token for `/metrics`, and of
# requests without credentials. They create no resources.
TASKS = principal.acting_service("", "ecs-tasks.amazonaws.com", "")
METRICS_READER = principal.acting_service("", "metrics", "")
ANONYMOUS = aws.Identity("", principal.Principal("", principal.ANONYMOUS, "*"), "", "")

log = logging.getLogger("corral")


class Authentication:
    """Each method checks one kind of credentials and returns the identity of the caller.

    If the credentials are wrong, a method raises the error of the protocol or returns None. If a method returns None, the code that
    called it raises the error.
    """

    def __init__(
        self,
        root_key_id: str,
        root: aws.Secret,
        session_key: bytes,
        live_tasks: Container[str],
        clock: Clock,
        validity: SessionValidity | None = None,
        iam: IamIndex | None = None,
        secrets_key: bytes = b"",
    ) -> None:
        self._root_key_id = root_key_id
        self._root = root
        self._session_key = session_key
        self._live_tasks = live_tasks
        self._clock = clock
        self._validity = validity or SessionValidity()
        self._iam = iam or IamIndex()
        self._secrets_key = secrets_key
        # The id of a user's access key → the key and the user that IAM had, and the secret made from them.
        self._user_secrets: dict[str, tuple[AccessKey, LiveUser, aws.Secret]] = {}

    def signature(self, request: aws.Request, signing_name: str | None = None) -> aws.Identity:
        """Verify the signature of a request whose body has arrived completely."""
        return aws.verify(request, self.secret, self._clock.wall_s(), signing_name=signing_name)

    def begin_signature(self, head: aws.Request, signing_name: str | None) -> aws.PendingVerification:
        """Verify the signature of a request as far as its head allows. `finish` of the result verifies the body."""
        return aws.begin_verification(head, self.secret, self._clock.wall_s(), signing_name)

    def head_signature(self, head: aws.Request, signing_name: str) -> tuple[aws.Identity, aws.RequestBody]:
        """Verify the signature of an S3 request. Return the caller and the decoder that verifies the body."""
        return aws.verify_head(head, self.secret, self._clock.wall_s(), signing_name=signing_name)

    def form_policy(self, fields: Mapping[str, str]) -> aws.PostPolicy:
        """Verify the signed policy in the fields of a browser form."""
        return aws.verify_post_policy(fields, self.secret, self._clock.wall_s())

    def registry_password(self, password: str) -> aws.Identity | None:
        """Check a password that `aws ecr get-login-password` has returned. The password also contains a region.

        Return None if Corral did not issue the password. Raise Denied if the password has expired.
        """
        access = access_of(self._session_key, password)
        if access is None:
            return None
        if self._has_ended(access.task_id, access.epoch) or access.expires_at_s <= self._clock.wall_s():
            raise Denied("Your authorization token has expired. Reauthenticate and try again.")
        return aws.Identity(
            "", access.principal, access.region, "ecr", task_id=access.task_id, confined=access.confined, terms=access.terms
        )

    def task_token(self, task_id: str, token: str) -> aws.Identity | None:
        """Check the AWS_CONTAINER_AUTHORIZATION_TOKEN of a task. Task ids are public, but the token is secret."""
        expected = sessions.password_of_task(self._session_key, task_id)
        if not compare_digest(token.encode("utf-8", "replace"), expected.encode()):
            return None
        return aws.Identity("", TASKS, "", "ecs", task_id=task_id)

    def metrics_token(self, token: str) -> aws.Identity | None:
        """Check the token with which Prometheus reads `/metrics`. The token is valid for this page only."""
        expected = sessions.metrics_token(self._session_key, self._validity.of_root)
        if not compare_digest(token.encode("utf-8", "replace"), expected.encode()):
            return None
        return aws.Identity("", METRICS_READER, "", "corral")

    def container_address(self, run_id: str, address: str) -> aws.Identity | None:
        """Check the secret in the metadata URL of a container."""
        if not compare_digest(address, sessions.address_of_run(self._session_key, run_id)):
            return None
        return aws.Identity("", TASKS, "", "ecs")

    def secret(self, access_key_id: str, token: str | None) -> aws.Secret | None:
        if access_key_id == self._root_key_id:
            return self._root
        if token is None:
            return self._secret_of_user(access_key_id)
        found = sessions.read(self._session_key, access_key_id, token)
        if found is None:
            return None
        session = found.session
        expires_at_s = ENDED_S if self._has_ended(session.task_id, session.epoch) else session.expires_at_s
        return aws.Secret(
            found.secret_key, token, expires_at_s, session.principal, session.task_id, session.confined, session.terms
        )

    def _secret_of_user(self, access_key_id: str) -> aws.Secret | None:
        """Return the secret of an active access key of a user of IAM. Return None if there is no such key."""
        key = self._iam.keys.get(access_key_id)
        user = self._iam.users.get(key.user) if key is not None else None
        if key is None or user is None or key.status != ACTIVE:
            return None
        cached = self._user_secrets.get(access_key_id)
        if cached is not None and cached[0] is key and cached[1] is user:
            return cached[2]
        from corral.operations.encryption import CannotDecrypt, decrypt  # imported with the first key of a user

        try:
            secret_key = decrypt(self._secrets_key, key.secret, access_key_id)
        except CannotDecrypt:
            log.error("The access key %s cannot be decrypted: restore secrets.json, or create another key.", access_key_id)
            return None
        secret = aws.Secret(secret_key, None, None, principal.iam_user(self._root.principal.account, user.name, user.path))
        if len(self._user_secrets) >= USER_SECRETS_MAX:
            self._user_secrets.clear()
        self._user_secrets[access_key_id] = key, user, secret
        return secret

    def _has_ended(self, task_id: str | None, epoch: str) -> bool:
        """Whether a session has ended before its expiry time.

        A session ends early when its task stops, when `corral revoke` ends it, or when the root key that created it changes.
        """
        if task_id is not None and task_id not in self._live_tasks:
            return True
        return not self._validity.includes(epoch, task_id)
