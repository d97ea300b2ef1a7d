"""A browser with the page of the console, as far as the server sees it: its headers, its cookie and its second secret."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

from harness import MAKING_A_CLIENT, REGION, SESSION, Corral


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json["error"]["code"])


class Page:
    def __init__(self, port: str) -> None:
        self.port = int(port)
        self.origin = f"http://127.0.0.1:{port}"
        self.cookie = self.secret = ""
        self.about: dict[str, Any] = {}

    def send(self, method: str, path: str, body: Any = None, **changed: str | None) -> Answer:
        """Send a request with the headers of the page. `changed` replaces or removes (None) some of them."""
        connection = self.begin(method, path, body, **changed)
        response = connection.getresponse()
        answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        connection.close()
        return answer

    def begin(self, method: str, path: str, body: Any = None, **changed: str | None) -> http.client.HTTPConnection:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers: dict[str, str | None] = {"sec-fetch-site": "same-origin", "cookie": self.cookie, "x-corral-console": self.secret}
        headers |= {"origin": self.origin} if method not in ("GET", "HEAD") else {}
        headers |= {name.replace("_", "-"): value for name, value in changed.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, content, {name: value for name, value in headers.items() if value})
        return connection

    def redeem(self, code: str) -> Answer:
        answer = self.send("POST", "/session", {"code": code})
        if answer.status == 200:
            self.about = answer.json
            self.cookie, self.secret = answer.headers["set-cookie"].partition(";")[0], self.about["secret"]
        return answer

    def call(self, service: str, operation: str, **params: Any) -> Any:
        answer = self.send("POST", f"/call/{service}/{operation}", params)
        assert answer.status == 200, answer
        return answer.json

    def refused(self, service: str, operation: str, **params: Any) -> Answer:
        answer = self.send("POST", f"/call/{service}/{operation}", params)
        assert answer.status >= 400, answer
        return answer


def opened(corral: Corral) -> Page:
    """The page of the root user."""
    page = Page(corral.console_port)
    assert page.redeem(corral.own("CreateConsoleLink")["code"]).status == 200
    return page


def new_user(corral: Corral, name: str, *statements: dict[str, Any]) -> dict[str, str]:
    """Create a user with these policies, and return its access key."""
    iam = corral.client("iam")
    iam.create_user(UserName=name)
    if statements:
        document = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=document)
    key: dict[str, str] = iam.create_access_key(UserName=name)["AccessKey"]
    return key


def own_client(corral: Corral, key: dict[str, str]) -> Any:
    """Return a client of Corral's own operations for a user."""
    with MAKING_A_CLIENT:
        return SESSION.client(
            "corral",
            endpoint_url=corral.url,
            region_name=REGION,
            aws_access_key_id=key["AccessKeyId"],
            aws_secret_access_key=key["SecretAccessKey"],
            aws_session_token=key.get("SessionToken"),
        )


def opened_by(corral: Corral, key: dict[str, str]) -> Page:
    """The page of a user."""
    page = Page(corral.console_port)
    assert page.redeem(own_client(corral, key).create_console_link()["code"]).status == 200
    return page
