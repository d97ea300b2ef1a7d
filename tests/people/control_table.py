"""Attempts on IAM, on sessions, on the registry and on pages that need no signature; and on history, usage and audit."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from harness import REGION
from people.attempts import (
    ACCOUNT,
    DENIED_KIND,
    HIDDEN,
    WORKS,
    Actor,
    Attempt,
    Names,
    Outcome,
    Params,
    api,
    filled,
    listing,
    outcome_of,
)
from people.world import registry_of

ADMIN = "arn:aws:iam::aws:policy/AdministratorAccess"
USERS_POLICY = f"arn:aws:iam::{ACCOUNT}:policy/corral/CorralUsers"
EVERYTHING = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
TRUST = json.dumps({"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/bob"}, "Action": "sts:AssumeRole"}]})  # fmt: skip
NONE: Params = {"control": ""}
ROOT: Params = {"control": "root"}
ROLE: Params = {"RoleName": "<them>-role"}
ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/<them>-role"
BOB, ALICE = f"arn:aws:iam::{ACCOUNT}:user/bob", f"arn:aws:iam::{ACCOUNT}:user/alice"

IAM = (
    api("make a user", "iam.create_user", {"UserName": "<me>-y"}, "user/<me>-y", **ROOT),
    api("make a key of another", "iam.create_access_key", {"UserName": "alice"}, ALICE, **ROOT),
    api("list the keys of another", "iam.list_access_keys", {"UserName": "alice"}, ALICE, **ROOT),
    api("disable the key of another", "iam.update_access_key", {"UserName": "alice", "AccessKeyId": "<alice_key>",
        "Status": "Inactive"}, ALICE, control_with={"UserName": "alice", "AccessKeyId": "<alice_key>", "Status": "Active"}, **ROOT),
    api("delete the key of another", "iam.delete_access_key", {"UserName": "alice", "AccessKeyId": "<alice_key>"}, ALICE, **NONE),
    api("see another user", "iam.get_user", {"UserName": "alice"}, ALICE, **ROOT),
    api("list the users", "iam.list_users", {}, **ROOT),
    api("read the whole of IAM", "iam.get_account_authorization_details", {}, **ROOT),
    api("give oneself a policy", "iam.put_user_policy", {"UserName": "bob", "PolicyName": "x", "PolicyDocument": EVERYTHING}, BOB,
        **NONE),
    api("attach a policy to oneself", "iam.attach_user_policy", {"UserName": "bob", "PolicyArn": ADMIN}, BOB, **NONE),
    api("remove a policy of oneself", "iam.delete_user_policy", {"UserName": "bob", "PolicyName": "trusted"}, BOB, **NONE),
    api("remove one's boundary", "iam.delete_user_permissions_boundary", {"UserName": "bob"}, BOB, **NONE),
    api("rename oneself", "iam.update_user", {"UserName": "bob", "NewPath": "/x/"}, BOB, **NONE),
    api("tag oneself", "iam.tag_user", {"UserName": "bob", "Tags": [{"Key": "a", "Value": "b"}]}, BOB, **NONE),
    api("join the administrators", "iam.add_user_to_group", {"UserName": "bob", "GroupName": "admins"}, "group/admins", **NONE),
    api("leave a group", "iam.remove_user_from_group", {"UserName": "bob", "GroupName": "users"}, "group/users", **NONE),
    api("give one's group a policy", "iam.put_group_policy", {"GroupName": "users", "PolicyName": "x",
        "PolicyDocument": EVERYTHING},
        "group/users", **NONE),
    api("attach a policy to one's group", "iam.attach_group_policy", {"GroupName": "users", "PolicyArn": ADMIN}, "group/users",
        **NONE),
    api("change the policy of users", "iam.create_policy_version", {"PolicyArn": USERS_POLICY, "PolicyDocument": EVERYTHING,
        "SetAsDefault": True}, USERS_POLICY, **NONE),
    api("choose its version", "iam.set_default_policy_version", {"PolicyArn": USERS_POLICY, "VersionId": "v1"}, USERS_POLICY,
        **ROOT),
    api("read the policy of users", "iam.get_policy_version", {"PolicyArn": USERS_POLICY, "VersionId": "v1"}, USERS_POLICY, **ROOT),
    api("make a policy", "iam.create_policy", {"PolicyName": "<me>-x", "PolicyDocument": EVERYTHING}, "policy/<me>-x", **ROOT),
    api("make a role", "iam.create_role", {"RoleName": "<me>-y", "AssumeRolePolicyDocument": TRUST}, "role/<me>-y", **ROOT),
    api("see a role", "iam.get_role", ROLE, ROLE_ARN, **ROOT),
    api("let oneself assume a role", "iam.update_assume_role_policy", {**ROLE, "PolicyDocument": TRUST}, ROLE_ARN, **NONE),
    api("give a role a policy", "iam.put_role_policy", {**ROLE, "PolicyName": "all", "PolicyDocument": EVERYTHING}, ROLE_ARN,
        **ROOT),
    api("attach a policy to a role", "iam.attach_role_policy", {**ROLE, "PolicyArn": ADMIN}, ROLE_ARN, **NONE),
    api("make a profile", "iam.create_instance_profile", {"InstanceProfileName": "<me>-y"}, "instance-profile/<me>-y", **ROOT),
    api("put a role into a profile", "iam.add_role_to_instance_profile", {"InstanceProfileName": "<me>-profile", **ROLE},
        "instance-profile/<me>-profile", **NONE),
    api("simulate the policies of another", "iam.simulate_principal_policy", {"PolicySourceArn": ALICE,
        "ActionNames": ["s3:GetObject"]}, ALICE, **ROOT),
    api("make a service-linked role", "iam.create_service_linked_role", {"AWSServiceName": "ecs.amazonaws.com"},
        "role/aws-service-role/", **NONE),
    api("assume a role", "sts.assume_role", {"RoleArn": ROLE_ARN, "RoleSessionName": "me"}, ROLE_ARN, control="",
        action="sts:AssumeRole"),
    api("assume a role that is not in IAM", "sts.assume_role", {"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/any",
        "RoleSessionName": "me"}, "role/any", **ROOT),
    api("assume a role with a source identity", "sts.assume_role", {"RoleArn": ROLE_ARN, "RoleSessionName": "me",
        "SourceIdentity": "alice"}, ROLE_ARN, action="sts:AssumeRole", **NONE),
    api("make a federated user", "sts.get_federation_token", {"Name": "me", "Policy": EVERYTHING}, "federated-user/me", **ROOT),
)  # fmt: skip


def session(name: str, make: Callable[[Actor, Names], Any], call: str, params: Params, action: str, on: str = "") -> Attempt:
    """An attempt with the credentials of a session that the caller has made. They may do no more than the caller."""
    service, _, method = call.partition(".")

    def run(actor: Actor, names: Names) -> Outcome:
        found = make(actor, names)
        keys = found["AccessKeyId"], found["SecretAccessKey"]
        limited = Actor(actor.name, actor.url, *keys, actor.ca_bundle, found["SessionToken"])
        return outcome_of(lambda: getattr(limited.client(service), method)(**filled(params, names)))

    return Attempt(name, run, action=action, on=on, control="")


def own_session(actor: Actor, names: Names) -> Any:
    return actor.client("sts").get_session_token()["Credentials"]


def of_function(actor: Actor, names: Names) -> Any:
    """The credentials of the role of the caller's function, which shows its variables. The role may do everything."""
    found = json.loads(actor.client("lambda").invoke(FunctionName=f"{actor.name}-fn")["Payload"].read())
    keys = found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"], found["AWS_SESSION_TOKEN"]
    return dict(zip(("AccessKeyId", "SecretAccessKey", "SessionToken"), keys, strict=True))


def of_task(actor: Actor, names: Names) -> Any:
    """The credentials of the role of the caller's task. The role may do everything."""
    text = fetched(actor, "GET", names["my_credentials"], {"Authorization": names["my_token"]}).text
    found = json.loads(text)
    return {**found, "SessionToken": found["Token"]}


SESSIONS = (
    session(
        "read an object by a session",
        own_session,
        "s3.get_object",
        {"Bucket": "<them>-data", "Key": "k"},
        "s3:GetObject",
        "<them>-data/k",
    ),
    session("use IAM by a session", own_session, "iam.list_access_keys", {}, "iam:ListAccessKeys"),
    session("make a session by a session", own_session, "sts.get_session_token", {}, ""),
    session(
        "read an object by the role of one's function",
        of_function,
        "s3.get_object",
        {"Bucket": "<them>-data", "Key": "k"},
        "s3:GetObject",
        "<them>-data/k",
    ),
    session("make a user by the role of one's function", of_function, "iam.create_user", {"UserName": "<me>-z"}, "iam:CreateUser"),
    session(
        "read a secret by the role of one's task",
        of_task,
        "secretsmanager.get_secret_value",
        {"SecretId": "<secret>"},
        "secretsmanager:GetSecretValue",
        "<secret>",
    ),
    session("stop a task by a session", own_session, "ecs.stop_task", {"task": "<task>"}, "ecs:StopTask", "<task>"),
)

CORRAL = (
    listing("see the command of a task in the line", "corral.list_runs", {}, "secret of <them>", **NONE),
    listing("see the history of another", "corral.get_history", {"limit": 100}, "'owner': '<owner>'", **NONE),
    listing("see the calls of another", "cloudtrail.lookup_events", {"LookupAttributes": [
        {"AttributeKey": "Username", "AttributeValue": "<them>"}]}, "CloudTrailEvent", **ROOT),
    api("see the tokens of hosts", "corral.list_join_tokens", {}, **ROOT),
    api("let a host join", "corral.create_join_token", {}, **ROOT),
    api("let a person connect as another", "corral.create_connect_code", {"user": "alice"}, **NONE),
    api("remove a person", "corral.remove_user", {"user": "alice"}, **NONE),
    api("end all sessions", "corral.revoke_sessions", {"all": True}, **NONE),
    api("stop all tasks", "corral.stop_all_tasks", {"pause": 1.0}, **NONE),
    api("drain a host", "corral.drain_host", {"host": "<host>"}, **NONE),
    api("forget a host", "corral.forget_host", {"host": "<host>"}, **NONE),
    api("get the token of the metrics", "corral.get_metrics_token", {}, **ROOT),
    api("change what waits", "corral.update_waiting_tasks", {"tasks": ["<task>"], "priority": 1}, "<task>", **NONE),
    api("pause a task", "corral.pause_task", {"task": "<task>"}, "<task>", **NONE),
    api("let a task continue", "corral.resume_task", {"task": "<task>"}, "<task>", **NONE),
    api("see the pause of a task", "corral.describe_task_pause", {"task": "<task>"}, "<task>", **NONE),
    api("see the files with the output of a task", "corral.list_output_files", {"task": "<task>"}, "<task>", **NONE),
    api("look at the messages of a queue", "corral.peek_messages", {"queue": "<them>-jobs"}, "<them>-jobs",
        action="sqs:ReceiveMessage", **NONE),
    api("forge the load of the GPUs of all", "cloudwatch.put_metric_data", {"Namespace": "Corral/GPU", "MetricData": [
        {"MetricName": "DCGM_FI_DEV_GPU_UTIL", "Value": 0.0}]}, says="The value Corral/ for parameter Namespace is invalid",
        expected="InvalidParameterValue", **NONE),
    listing("find the names of tasks", "corral.list_task_names", {}, "'<them>-task'", **NONE),
    listing("see the state of a log", "corral.describe_log_states", {"group": "/<them>/log", "streams": ["s"]}, "'s'"),
    listing("see the usage of another", "corral.get_usage", {}, "secret of <them>", **NONE),
)  # fmt: skip


# --- the registry -------------------------------------------------------------------------------------------------------


def registry(
    name: str, method: str, path: str, action: str, *, body: bytes | None = None, on: str = "<them>/app", **more: Any
) -> Attempt:
    def run(actor: Actor, names: Names) -> Outcome:
        sent = filled("<manifest>", names).encode() if body == b"manifest" else body
        headers = {"content_type": "application/vnd.oci.image.manifest.v1+json"} if body == b"manifest" else {}
        answer = registry_of(actor)(method, filled(path, names), sent, **headers)
        if answer.status < 300:
            return Outcome(WORKS, answer.body[:1000].decode("latin-1"))
        text = answer.body.decode()
        return Outcome(
            DENIED_KIND if answer.status == 403 else str(answer.status), json.loads(text)["errors"][0]["message"] if text else ""
        )

    return Attempt(name, run, action=action, on=on, **more)


def catalog(actor: Actor, names: Names) -> Outcome:
    answer = registry_of(actor)("GET", "/v2/_catalog")
    text = answer.body.decode()
    return Outcome(WORKS if filled('"<them>/app"', names) in text else HIDDEN, text)


APP = "/v2/<them>/app"
REPOSITORY: Params = {"repositoryName": "<them>/app"}
REPOSITORY_ARN = f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/<them>/app"
REGISTRY = (
    registry("pull the manifest of an image", "GET", f"{APP}/manifests/v1", "ecr:BatchGetImage"),
    registry("pull a layer", "GET", f"{APP}/blobs/<layer>", "ecr:GetDownloadUrlForLayer"),
    registry("list the tags of a repository", "GET", f"{APP}/tags/list", "ecr:ListImages"),
    registry("begin a push", "POST", f"{APP}/blobs/uploads/", "ecr:InitiateLayerUpload"),
    registry("mount a layer of another", "POST", "/v2/<me>/app/blobs/uploads/?mount=<layer>&from=<them>/app",
             "ecr:GetDownloadUrlForLayer"),
    registry("push a manifest", "PUT", f"{APP}/manifests/v9", "ecr:PutImage", body=b"manifest"),
    registry("delete a manifest", "DELETE", f"{APP}/manifests/<digest>", "ecr:BatchDeleteImage", is_last=True),
    Attempt("list the repositories of all", catalog, HIDDEN),
    api("describe a repository", "ecr.describe_repositories", {"repositoryNames": ["<them>/app"]}, REPOSITORY_ARN),
    listing("list the repositories", "ecr.describe_repositories", {}, "<them>/app"),
    api("describe the images", "ecr.describe_images", REPOSITORY, REPOSITORY_ARN),
    api("list the images", "ecr.list_images", REPOSITORY, REPOSITORY_ARN),
    api("get an image", "ecr.batch_get_image", {**REPOSITORY, "imageIds": [{"imageTag": "v1"}]}, REPOSITORY_ARN),
    api("put an image", "ecr.put_image", {**REPOSITORY, "imageManifest": "<manifest>", "imageTag": "v2"}, REPOSITORY_ARN),
    api("open a repository", "ecr.set_repository_policy", {**REPOSITORY, "policyText": json.dumps({"Version": "2012-10-17",
        "Statement": [{"Sid": "s", "Effect": "Allow", "Principal": {"AWS": BOB}, "Action": "ecr:*"}]})}, REPOSITORY_ARN),
    api("let images expire", "ecr.put_lifecycle_policy", {**REPOSITORY, "lifecyclePolicyText": json.dumps({"rules": [{
        "rulePriority": 1, "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 99},
        "action": {"type": "expire"}}]})}, REPOSITORY_ARN),
    api("run the image of another", "ecs.register_task_definition", {"family": "<me>-image", "containerDefinitions": [{
        "name": "c", "memory": 64, "image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/<them>/app:v1"}]}, REPOSITORY_ARN,
        action="ecr:BatchGetImage"),
    api("run it as a job", "batch.register_job_definition", {"jobDefinitionName": "<me>-image", "type": "container",
        "containerProperties": {"image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/<them>/app:v1", "command": ["id"],
        "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]}}, REPOSITORY_ARN,
        action="ecr:BatchGetImage"),
    api("change the policy of the registry", "ecr.put_registry_policy", {"policyText": json.dumps({"Version": "2012-10-17",
        "Statement": [{"Sid": "s", "Effect": "Allow", "Principal": {"AWS": BOB}, "Action": "ecr:*", "Resource": "*"}]})}, **NONE),
    api("delete the images", "ecr.batch_delete_image", {**REPOSITORY, "imageIds": [{"imageTag": "v1"}]}, REPOSITORY_ARN,
        is_last=True),
    api("delete a repository", "ecr.delete_repository", {**REPOSITORY, "force": True}, REPOSITORY_ARN, is_last=True),
)  # fmt: skip


# --- presigned URLs, and pages without a signature ------------------------------------------------------------------------


def fetched(actor: Actor, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> Outcome:
    """Send a request that is not signed by us. `target` is a path of the server, or a URL of it."""
    server, url = urlsplit(actor.url), urlsplit(target)
    if server.scheme == "https":
        context = ssl.create_default_context(cafile=actor.ca_bundle)
        connection: HTTPConnection = HTTPSConnection(server.hostname or "", server.port, timeout=30, context=context)
    else:
        connection = HTTPConnection(server.hostname or "", server.port, timeout=30)
    try:
        connection.request(method, f"{url.path}?{url.query}" if url.query else url.path, body, headers or {})
        answer = connection.getresponse()
        text = answer.read(10_000).decode("latin-1")
    finally:
        connection.close()
    if answer.status < 300:
        return Outcome(WORKS, text)
    return Outcome(
        DENIED_KIND if answer.status in (401, 403) else HIDDEN if answer.status in (400, 404) else str(answer.status), text
    )


def page(name: str, method: str, path: str, headers: Params | None = None, expected: str = DENIED_KIND, **more: Any) -> Attempt:
    def run(actor: Actor, names: Names) -> Outcome:
        return fetched(actor, method, filled(path, names), filled(headers or {}, names))

    return Attempt(name, run, expected, **more)


def presigned(
    name: str, method: str, params: Params, *, sent: str = "", wait: int = 3600, action: str = "", **more: Any
) -> Attempt:
    """A URL that the caller has signed, sent with a method that may be another."""
    verbs = {"get_object": "GET", "put_object": "PUT", "delete_object": "DELETE"}

    def run(actor: Actor, names: Names) -> Outcome:
        url = actor.client("s3").generate_presigned_url(method, Params=filled(params, names), ExpiresIn=wait)
        return fetched(actor, sent or verbs[method], url, body=b"x" if verbs[method] == "PUT" else None)

    return Attempt(name, run, action=action, **more)


KEY: Params = {"Bucket": "<them>-data", "Key": "k"}
MINE: Params = {"Bucket": "<me>-data", "Key": "k"}


def borrowed(name: str, change: Callable[[str], str], method: str = "GET") -> Attempt:
    """A URL that its owner has signed and given away, changed by the attempt."""

    def run(actor: Actor, names: Names) -> Outcome:
        return fetched(actor, method, change(names["url_of_k"]))

    return Attempt(name, run, control="")


PAGES = (
    presigned("sign a URL to read", "get_object", KEY, action="s3:GetObject", on="<them>-data/k"),
    presigned("sign a URL to write", "put_object", KEY, action="s3:PutObject", on="<them>-data/k"),
    presigned("sign a URL to delete", "delete_object", {**KEY, "Key": "spare"}, action="s3:DeleteObject", on="<them>-data/spare",
              is_last=True),
    presigned("write with a URL to read", "get_object", MINE, sent="PUT", control=""),
    presigned("delete with a URL to read", "get_object", MINE, sent="DELETE", control=""),
    borrowed("read another object with a URL", lambda url: url.replace("-data/k?", "-data/spare?")),
    borrowed("write with the URL of another", lambda url: url, "PUT"),
    borrowed("delete with the URL of another", lambda url: url, "DELETE"),
    borrowed("stretch the time of a URL", lambda url: url.replace("X-Amz-Expires=3600", "X-Amz-Expires=36000")),
    Attempt("use a URL that has expired", lambda actor, names: fetched(actor, "GET", names["expired_url"]), control=""),
    page("read an object without a signature", "GET", "/<them>-data/k", control=""),
    page("list a bucket without a signature", "GET", "/<them>-data", control=""),
    page("get the credentials of a task without its token", "GET", "/v2/credentials/<task>", control=""),
    page("get them with the token of another task", "GET", "/v2/credentials/<task>", {"Authorization": "<my_token>"}, control=""),
    page("get them with the token", "GET", "/v2/credentials/<spare_task>", {"Authorization": "<token>"}, control=""),
    page("guess the metadata of a task", "GET", "/v4/<task>-00000000000000000000000000000000/task", expected=HIDDEN, control=""),
    page("read the metadata with one's own secret", "GET", "/v4/<task>-<my_address_secret>/task", expected=HIDDEN, control=""),
    page("protect a task by its endpoint", "PUT", "/api/<task>-<my_address_secret>/task-protection/v1/state", expected=HIDDEN,
         control=""),
    page("read the metrics of Prometheus", "GET", "/metrics", control=""),
    page("read the code of a function", "GET", "/_corral/functions/x", control=""),
)  # fmt: skip

ATTEMPTS = (*IAM, *SESSIONS, *CORRAL, *REGISTRY, *PAGES)
