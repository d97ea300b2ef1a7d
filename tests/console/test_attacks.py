"""Attacks on the console: each of its defences alone refuses a request that has everything else."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from console.page import Page, new_user, opened, opened_by, own_client
from corral.server.console.guard import HEADERS
from harness import Corral

PATHS = [
    ("GET", "/session"), ("DELETE", "/session"), ("POST", "/call/ecs/ListTasks"), ("POST", "/changes"),
    ("GET", "/object/attacks/key"), ("PUT", "/object/attacks/key"), ("POST", "/ticket"),
]  # fmt: skip
NO_SESSION: list[dict[str, str | None]] = [
    {"cookie": None, "x_corral_console": None},
    {"x_corral_console": None},
    {"x_corral_console": "x" * 43},
    {"cookie": None},
    {"cookie": "corral_console=x"},
]
FOREIGN: list[dict[str, str | None]] = [
    {"origin": "https://example.com"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},  # such as a task's page on another port
    {"sec_fetch_site": "none"},
]


@pytest.fixture(scope="module")
def page(corral: Corral) -> Page:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="attacks")
    s3.put_object(Bucket="attacks", Key="key", Body=b"<script>alert(1)</script>", ContentType="text/html")
    return opened(corral)


@pytest.fixture
def stranger(page: Page) -> Iterator[Page]:
    """A page with the session of the victim, which the test takes parts of."""
    made = Page(str(page.port))
    made.cookie, made.secret = page.cookie, page.secret
    yield made
    assert page.send("GET", "/session").status == 200, "the session of the victim has ended"


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_each_path_needs_the_cookie_and_the_second_secret(stranger: Page, method: str, path: str) -> None:
    for changed in NO_SESSION:
        answer = stranger.send(method, path, {"topics": ["tasks"]} if method == "POST" else None, **changed)
        assert (answer.status, answer.code) == (401, "SessionEnded"), (changed, answer)


@pytest.mark.parametrize(("method", "path"), [*PATHS, ("POST", "/session"), ("GET", "/download/ticket")])
def test_each_path_refuses_other_origins(corral: Corral, stranger: Page, method: str, path: str) -> None:
    api: dict[str, str | None] = {"origin": corral.url}
    missing: list[dict[str, str | None]] = [] if method == "GET" else [{"origin": None}]
    for changed in [*FOREIGN, api, *missing]:
        answer = stranger.send(method, path, {"topics": ["tasks"]} if method == "POST" else None, **changed)
        assert (answer.status, answer.code) == (403, "ForeignOrigin"), (changed, answer)


@pytest.mark.parametrize(
    "host", ["example.com", "example.com:{port}", "127.0.0.1.example.com", "localhost.example.com:{port}", "x"]
)
def test_names_that_were_made_to_lead_here_are_refused(stranger: Page, host: str) -> None:
    """A page of example.com whose name leads to 127.0.0.1 has the console as its own origin (DNS rebinding)."""
    name = host.format(port=stranger.port)
    for method, path in [*PATHS, ("GET", "/"), ("POST", "/session")]:
        answer = stranger.send(method, path, host=name, origin=f"http://{name}")
        assert (answer.status, answer.code) == (421, "UnknownHost")


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:9999", "LOCALHOST", "[::1]:{port}", "10.1.2.3:4568"])
def test_addresses_and_tunnels_are_served(stranger: Page, host: str) -> None:
    name = host.format(port=stranger.port)
    assert stranger.send("GET", "/session", host=name).status == 200
    assert stranger.send("POST", "/call/ecs/ListTasks", {}, host=name, origin=f"http://{name}").status == 200
    assert stranger.send("POST", "/call/ecs/ListTasks", {}, host=name).status == (200 if name in stranger.origin else 403)


def test_each_response_forbids_frames_and_foreign_scripts(page: Page) -> None:
    assert "frame-ancestors 'none'" in dict(HEADERS)["Content-Security-Policy"]
    for method, path in [("GET", "/"), ("GET", "/none"), *PATHS[:1], *PATHS[2:3]]:
        answer = page.send(method, path, {} if method == "POST" else None)
        assert {name: answer.headers[name.lower()] for name, _ in HEADERS} == dict(HEADERS)
    refused = page.send("GET", "/session", cookie=None)
    assert {name: refused.headers[name.lower()] for name, _ in HEADERS} == dict(HEADERS)
    kept = Page(str(page.port)).send("OPTIONS", "/session", origin="https://example.com")  # a preflight of CORS
    assert kept.status == 405 and not any(name.startswith("access-control-") for name in kept.headers)


def test_the_cookie_is_for_the_browser_alone(corral: Corral) -> None:
    answer = Page(corral.console_port).redeem(corral.own("CreateConsoleLink")["code"])
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith(f"corral_console_{corral.console_port}=") and answer.headers["cache-control"] == "no-store"
    assert attributes == ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"]
    assert name.partition("=")[2].encode() not in answer.body


def test_a_used_link_opens_nothing(corral: Corral) -> None:
    code = corral.own("CreateConsoleLink")["code"]
    assert Page(corral.console_port).redeem(code).status == 200
    for used in (code, "", "x" * 32):
        assert (Page(corral.console_port).redeem(used)).code == "SessionEnded"
    for body in ({}, {"code": 1}, [], b"x", b"\xff"):
        assert Page(corral.console_port).send("POST", "/session", body).status == 400


def test_an_html_object_is_never_a_page_of_the_console(page: Page) -> None:
    ticket = page.send("POST", "/ticket", {"bucket": "attacks", "key": "key", "versionId": None}).json["url"]
    for path in ("/object/attacks/key", ticket):
        answer = page.send("GET", path)
        assert answer.body == b"<script>alert(1)</script>"
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''key"
        assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_ticket_is_for_one_download_of_one_session(corral: Corral, page: Page) -> None:
    def ticket() -> str:
        return str(page.send("POST", "/ticket", {"bucket": "attacks", "key": "key"}).json["url"])

    other = opened(corral)
    first = str(other.send("POST", "/ticket", {"bucket": "attacks", "key": "key"}).json["url"])
    for _ in range(1_000):
        ticket()
    assert other.send("GET", first, x_corral_console=None).status == 200, "the tickets of a session end only its own"
    name = page.cookie.partition("=")[0]
    for thief in (other.cookie, None, "corral_console=x", f"{name}=\u00e9"):
        path = ticket()
        assert page.send("GET", path, cookie=thief, x_corral_console=None).code == "TicketEnded"
        assert page.send("GET", path, x_corral_console=None).code == "TicketEnded"  # the attempt has used it up
    path = ticket()
    assert page.send("GET", path, x_corral_console=None).status == 200
    assert page.send("GET", path, x_corral_console=None).code == "TicketEnded"
    ended = str(other.send("POST", "/ticket", {"bucket": "attacks", "key": "key"}).json["url"])
    assert other.send("DELETE", "/session").status == 200
    assert other.send("GET", ended, x_corral_console=None).code == "SessionEnded"


@pytest.mark.parametrize("path", ["/static/../calls.py", "/static/%2e%2e/x", "/static/.hidden", "/static//etc/passwd",
                                  "/static/a/b.js", "/static/none.js", "/static/__init__.py", "/none", "/call",
                                  "//session"])  # fmt: skip
def test_only_files_of_the_page_are_served(page: Page, path: str) -> None:
    assert page.send("GET", path).status in (404, 405)


@pytest.mark.parametrize("path", ["/object/attacks", "/object/attacks/", "/object/", "/object/attacks/key?acl",
                                  "/object/attacks/key?uploads",
                                  "/object/attacks/key?versionId=null&tagging"])  # fmt: skip
def test_object_paths_reach_no_other_operations(page: Page, path: str) -> None:
    for method in ("GET", "PUT"):
        assert page.send(method, path, b"" if method == "PUT" else None).code == "InvalidRequest"


def test_a_user_can_do_in_the_console_what_policies_allow(corral: Corral, page: Page) -> None:
    sees = {"Effect": "Allow", "Action": ["sqs:*", "s3:GetObject"], "Resource": "*"}
    denies = {"Effect": "Deny", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::attacks/*"}
    key = new_user(corral, "limited", sees, denies)
    mine = opened_by(corral, key)
    assert mine.about["identity"] == {
        "account": "123456789012", "arn": "arn:aws:iam::123456789012:user/limited", "name": "limited", "kind": "user",
    }  # fmt: skip
    assert mine.call("sqs", "CreateQueue", QueueName="of-limited")["QueueUrl"].endswith("/of-limited")
    for service, operation, params in (
        ("ecs", "ListTasks", {}), ("iam", "CreateUser", {"UserName": "more"}), ("s3", "ListObjectsV2", {"Bucket": "attacks"}),
        ("corral", "RemoveUser", {"user": "limited"}),
    ):  # fmt: skip
        answer = mine.refused(service, operation, **params)
        assert answer.status in (400, 403) and "AccessDenied" in answer.code, answer
    assert mine.send("GET", "/object/attacks/key").code == "AccessDenied"
    assert mine.send("PUT", "/object/attacks/other", b"x").code == "AccessDenied"
    ticket = mine.send("POST", "/ticket", {"bucket": "attacks", "key": "key"}).json["url"]
    assert mine.send("GET", ticket).code == "AccessDenied"
    assert mine.send("POST", "/changes", {"topics": ["logs:/g:s"]}).code == "AccessDenied"
    corral.client("sqs").create_queue(QueueName="peeked")
    none = {"Effect": "Deny", "Action": "sqs:ReceiveMessage", "Resource": "*"}
    corral.client("iam").put_user_policy(
        UserName="limited", PolicyName="q", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [none]})
    )
    assert "sqs:ReceiveMessage" in mine.refused("corral", "PeekMessages", queue="peeked").json["error"]["message"]


def test_policies_test_the_parameters_of_s3_that_are_headers_in_the_api(corral: Corral) -> None:
    denied = ["s3:PutObjectTagging", "s3:PutObjectAcl", "s3:PutBucketAcl", "s3:PutBucketOwnershipControls"]
    cold = {
        "Effect": "Deny",
        "Action": "s3:*",
        "Resource": "*",
        "Condition": {"StringEquals": {"s3:x-amz-storage-class": "GLACIER"}},
    }
    all_but = {"Effect": "Allow", "NotAction": denied, "Resource": "*"}
    mine = opened_by(corral, new_user(corral, "plain", all_but, cold))
    mine.call("s3", "CreateBucket", Bucket="of-plain")
    upload = {"Bucket": "of-plain", "Key": "key"}
    for operation, params in [
        ("CreateMultipartUpload", {**upload, "Tagging": "a=b"}),
        ("CreateMultipartUpload", {**upload, "ACL": "public-read"}),
        ("CreateMultipartUpload", {**upload, "GrantRead": 'id="x"'}),
        ("CreateMultipartUpload", {**upload, "StorageClass": "GLACIER"}),
        ("CreateBucket", {"Bucket": "public-of-plain", "ACL": "public-read"}),
        ("CreateBucket", {"Bucket": "public-of-plain", "ObjectOwnership": "ObjectWriter"}),
    ]:
        assert mine.refused("s3", operation, **params).code == "AccessDenied", (operation, params)
    mine.call("s3", "CreateMultipartUpload", **upload, StorageClass="STANDARD")


def test_a_user_that_is_removed_has_no_session(corral: Corral, page: Page) -> None:
    key = new_user(corral, "leaver", {"Effect": "Allow", "Action": "*", "Resource": "*"})
    client = own_client(corral, key)
    mine, unused = opened_by(corral, key), client.create_console_link()["code"]
    stream = mine.begin("POST", "/changes", {"topics": ["queues"]}).getresponse()
    assert stream.readline().startswith(b"id: ")
    corral.own("RemoveUser", user="leaver")
    assert b"data" not in stream.read().partition(b"\n\n")[2]  # the stream ends at once, not with its next event
    assert mine.send("GET", "/session").code == "SessionEnded"
    assert mine.refused("ecs", "ListTasks").code == "SessionEnded"
    assert Page(corral.console_port).redeem(unused).code == "SessionEnded"
    new_user(corral, "leaver", {"Effect": "Allow", "Action": "*", "Resource": "*"})  # another person of the same name
    assert mine.refused("ecs", "ListTasks").code == "SessionEnded"


def test_only_long_term_keys_make_links_and_sessions_make_none(corral: Corral, page: Page) -> None:
    session = corral.client("sts").get_session_token()["Credentials"]
    for operation in ("create_console_link", "end_console_sessions"):
        temporary = own_client(corral, session)
        with pytest.raises(temporary.exceptions.AccessDeniedException):
            getattr(temporary, operation)()
    assert page.refused("corral", "CreateConsoleLink").code == "NotInConsole"
    key = new_user(corral, "without-policies")
    mine = opened_by(corral, key)
    assert "AccessDenied" in mine.refused("ecs", "ListTasks").code
    stream = mine.begin("POST", "/changes", {"topics": ["queues"]}).getresponse()
    assert stream.readline().startswith(b"id: ")
    assert own_client(corral, key).end_console_sessions()["sessions"] == 1
    assert b"data" not in stream.read().partition(b"\n\n")[2]
    assert mine.send("GET", "/session").code == "SessionEnded"


def test_the_console_does_not_serve_the_api_and_the_api_not_the_console(corral: Corral, page: Page) -> None:
    assert page.send("POST", "/", b"Action=ListUsers&Version=2010-05-08").status in (403, 404)
    api = Page(corral.url.rpartition(":")[2])
    api.cookie, api.secret = page.cookie, page.secret
    for method, path in PATHS:
        assert api.send(method, path, {} if method == "POST" else None).status in (400, 403, 404, 405, 501), path
