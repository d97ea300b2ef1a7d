"""Objects that a container has written: Corral does not use them as code, templates or environment of programs on the host."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest
import urllib3

from clients.function_help import create, invoke, zipped
from clients.stack_help import described, ended, events
from clients.test_container_permissions import TRUST_TASKS, Inside, allow, policy, refused
from each import check_each
from harness import Corral, container, eventually, wait_stopped
from raw_registry import Registry, digest_of, new_repository

BUCKET, ROLE = "obeyed", "writer"
GOOD, EVIL = zipped("handler = lambda *_: 'good'"), zipped("handler = lambda *_: 'evil'")
TEMPLATE = "Resources: {T: {Type: AWS::SNS::Topic}}"
RUN_ON_HOST = policy(allow(["corral:RunOnHost", "cloudformation:*", "sns:*"]))


@pytest.fixture(scope="module")
def inside(corral: Corral) -> Inside:
    """Clients of a task in containers. Its role has no policies."""
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="holder", containerDefinitions=[container(["sleep", "600"])])
    arn = ecs.run_task(taskDefinition="holder")["tasks"][0]["taskArn"]
    eventually(lambda: ecs.describe_tasks(tasks=[arn])["tasks"][0]["lastStatus"] == "RUNNING", "running")
    corral.client("iam").create_role(RoleName=ROLE, AssumeRolePolicyDocument=policy(TRUST_TASKS))
    corral.client("s3").create_bucket(Bucket=BUCKET)
    corral.client("s3").put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    return Inside(corral, ROLE, arn.rpartition("/")[2])


class Case:
    """One way to write the object `key`, as the root user or in the container."""

    def __init__(self, root: Any, inside: Any, key: str) -> None:
        self.root, self.inside, self.key = root, inside, {"Bucket": BUCKET, "Key": key}

    def put(self, client: Any, body: bytes = GOOD) -> str:
        return str(client.put_object(**self.key, Body=body)["VersionId"])

    def copy(self, client: Any, **more: Any) -> None:
        client.copy_object(**self.key, CopySource={**self.key}, MetadataDirective="REPLACE", **more)

    def parts(self, first: Any, last: Any, *, copies: bool = False) -> None:
        """A multipart upload. `first` writes the part, and `last` completes the upload."""
        upload = {**self.key, "UploadId": last.create_multipart_upload(**self.key)["UploadId"]}
        if copies:
            self.put(self.root)
            part = first.upload_part_copy(**upload, PartNumber=1, CopySource={**self.key})["CopyPartResult"]
        else:
            last.upload_part(**upload, PartNumber=2, Body=b"not listed")
            part = first.upload_part(**upload, PartNumber=1, Body=GOOD)
        last.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})

    def url(self, signer: Any) -> None:
        url = signer.generate_presigned_url("put_object", Params=self.key)
        urlopen(Request(url, data=GOOD, method="PUT", headers={"Content-Type": ""}))

    def form(self, signer: Any) -> None:
        form = signer.generate_presigned_post(BUCKET, self.key["Key"])
        fields = {**form["fields"], "file": ("f", GOOD)}
        assert urllib3.PoolManager().request("POST", form["url"], fields=fields).status == 204

    def older(self, older: Any, newer: Any) -> None:
        """The object of `older` becomes current again, because the version of `newer` is deleted."""
        self.put(older)
        self.inside.delete_object(**self.key, VersionId=self.put(newer))


def tagged(case: Case) -> None:
    case.put(case.root)
    case.inside.put_object_tagging(**case.key, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})


def copied_by_root(case: Case) -> None:
    case.put(case.inside)
    case.copy(case.root)


def copied_inside(case: Case) -> None:
    case.put(case.root)
    case.copy(case.inside)


# The ways to write an object → whether a function may have its code from this object.
WAYS: dict[str, tuple[bool, Callable[[Case], object]]] = {
    "root puts": (True, lambda case: case.put(case.root)),
    "inside puts": (False, lambda case: case.put(case.inside)),
    "inside tags": (True, tagged),
    "root copies": (True, copied_by_root),
    "inside copies": (False, copied_inside),
    "root uploads parts": (True, lambda case: case.parts(case.root, case.root)),
    "inside uploads a part": (False, lambda case: case.parts(case.inside, case.root)),
    "inside completes": (False, lambda case: case.parts(case.root, case.inside)),
    "inside copies a part": (False, lambda case: case.parts(case.inside, case.root, copies=True)),
    "root signs a URL": (True, lambda case: case.url(case.root)),
    "inside signs a URL": (False, lambda case: case.url(case.inside)),
    "inside signs a form": (False, lambda case: case.form(case.inside)),
    "root's version is current again": (True, lambda case: case.older(case.root, case.inside)),
    "the container's version is current again": (False, lambda case: case.older(case.inside, case.root)),
}


def test_the_code_of_a_function(corral: Corral, inside: Inside) -> None:
    """Each way to write an object stores its writer."""
    functions, arn = corral.client("lambda"), inside.principal
    create(functions, "f", "handler = lambda *_: 'old'")

    def check(way: str) -> None:
        accepted, write = WAYS[way]
        key = way.replace(" ", "-").replace("'", "")
        write(Case(corral.client("s3"), inside.s3, key))
        update = {"FunctionName": "f", "S3Bucket": BUCKET, "S3Key": key, "DryRun": True}
        if accepted:
            functions.update_function_code(**update)
            return
        code, text, _ = refused(functions.update_function_code, **update)
        assert code == "InvalidParameterValueException"
        assert f"{arn} wrote s3://{BUCKET}/{key} and may not run programs on the host. Write it again" in text

    check_each(WAYS, check)
    assert invoke(functions, "f") == "old"


def test_a_function_runs_only_code_of_permitted_writers(corral: Corral, inside: Inside) -> None:
    functions, iam, key = corral.client("lambda"), corral.client("iam"), {"S3Bucket": BUCKET, "S3Key": "code"}
    first = corral.client("s3").put_object(Bucket=BUCKET, Key="code", Body=GOOD)["VersionId"]
    last = inside.s3.put_object(Bucket=BUCKET, Key="code", Body=EVIL)["VersionId"]
    assert "may not run programs on the host" in refused(create, client=functions, name="g", source="", Code=key)[1]
    create(functions, "g", "", Code={**key, "S3ObjectVersion": first})
    assert invoke(functions, "g") == "good"
    assert "corral:RunOnHost" in refused(functions.update_function_code, FunctionName="g", **key, S3ObjectVersion=last)[1]
    iam.put_role_policy(RoleName=ROLE, PolicyName="host", PolicyDocument=RUN_ON_HOST)
    functions.update_function_code(FunctionName="g", **key)
    assert invoke(functions, "g") == "evil"  # the policy permits it, also for objects that were written before
    iam.delete_role_policy(RoleName=ROLE, PolicyName="host")
    assert "corral:RunOnHost" in refused(functions.update_function_code, FunctionName="g", **key)[1]
    deleted = Inside(corral, "deleted", inside.task_id)
    iam.create_role(RoleName="deleted", AssumeRolePolicyDocument=policy(TRUST_TASKS))
    iam.put_role_policy(RoleName="deleted", PolicyName="host", PolicyDocument=RUN_ON_HOST)
    deleted.s3.put_object(Bucket=BUCKET, Key="code", Body=EVIL)
    functions.update_function_code(FunctionName="g", **key)
    iam.delete_role_policy(RoleName="deleted", PolicyName="host")
    iam.delete_role(RoleName="deleted")
    assert "of the role deleted" in refused(functions.update_function_code, FunctionName="g", **key)[1]


def test_the_environment_file_of_a_task_on_the_host(corral: Corral, inside: Inside) -> None:
    ecs, s3 = corral.client("ecs"), corral.client("s3")
    file = {"type": "s3", "value": f"arn:aws:s3:::{BUCKET}/x.env"}
    given = container(["sh", "-c", 'test "$X" = root'], environmentFiles=[file])
    ecs.register_task_definition(family="with-file", containerDefinitions=[given])

    def run() -> dict[str, Any]:
        [stopped] = wait_stopped(ecs, [ecs.run_task(taskDefinition="with-file")["tasks"][0]["taskArn"]])
        return dict(stopped)

    s3.put_object(Bucket=BUCKET, Key="x.env", Body=b"X=root")
    assert run()["containers"][0]["exitCode"] == 0
    inside.s3.put_object(Bucket=BUCKET, Key="x.env", Body=b"X=root\nBASH_ENV=/tmp/evil")
    reason = run()["stoppedReason"]
    assert "ResourceInitializationError: failed to download env files" in reason
    assert f"{inside.principal} wrote s3://{BUCKET}/x.env" in reason
    s3.copy_object(Bucket=BUCKET, Key="x.env", CopySource=f"{BUCKET}/x.env", MetadataDirective="REPLACE")
    assert run()["containers"][0]["exitCode"] == 0


def test_templates(corral: Corral, inside: Inside) -> None:
    cloudformation, iam = corral.client("cloudformation"), corral.client("iam")
    inside.s3.put_object(Bucket=BUCKET, Key="t", Body=TEMPLATE)
    url = f"{corral.url}/{BUCKET}/t"
    cloudformation.create_stack(StackName="mine", TemplateBody=TEMPLATE)
    assert ended(cloudformation, "mine")["StackStatus"] == "CREATE_COMPLETE"
    change = {"ChangeSetName": "c", "StackName": "mine"}
    for call, params in (
        (cloudformation.create_stack, {"StackName": "new"}),
        (cloudformation.update_stack, {"StackName": "mine"}),
        (cloudformation.create_change_set, change),
    ):
        code, text, _ = refused(call, TemplateURL=url, **params)
        assert code == "ValidationError" and f"{inside.principal} wrote s3://{BUCKET}/t" in text
    cloudformation.validate_template(TemplateURL=url)  # the template has no effect
    cloudformation.get_template_summary(TemplateURL=url)
    nested = f"Resources: {{N: {{Type: AWS::CloudFormation::Stack, Properties: {{TemplateURL: '{url}'}}}}}}"
    cloudformation.create_stack(StackName="nested", TemplateBody=nested)
    assert ended(cloudformation, "nested")["StackStatus"] == "ROLLBACK_COMPLETE"
    reasons = [each.get("ResourceStatusReason", "") for each in events(cloudformation, "nested")]
    assert any(f"{inside.principal} wrote s3://{BUCKET}/t" in reason for reason in reasons)
    # If a container may not run programs on the host, its stack may not either. So the writer of the template does not count.
    iam.put_role_policy(RoleName=ROLE, PolicyName="stacks", PolicyDocument=policy(allow(["cloudformation:*", "sns:*", "s3:*"])))
    inside.cloudformation.create_stack(StackName="theirs", TemplateURL=url)
    assert ended(cloudformation, "theirs")["StackStatus"] == "CREATE_COMPLETE"
    iam.delete_role_policy(RoleName=ROLE, PolicyName="stacks")
    corral.client("s3").copy_object(Bucket=BUCKET, Key="t", CopySource=f"{BUCKET}/t", MetadataDirective="REPLACE")
    cloudformation.create_stack(StackName="new", TemplateURL=url)
    assert ended(cloudformation, "new")["StackStatus"] == "CREATE_COMPLETE"
    assert described(cloudformation, "mine")["StackStatus"] == "CREATE_COMPLETE"


def test_the_stack_of_a_container(corral: Corral, inside: Inside) -> None:
    """The root user does not obey the template that a container sent, neither in a change set nor as the previous template."""
    cloudformation, iam = corral.client("cloudformation"), corral.client("iam")
    iam.put_role_policy(RoleName=ROLE, PolicyName="stacks", PolicyDocument=policy(allow(["cloudformation:*", "sns:*"])))
    topic = "Resources: {T: {Type: AWS::SNS::Topic, Properties: {DisplayName: !Ref P}}}"
    template = f"Parameters: {{P: {{Type: String, Default: a}}}}\n{topic}"
    inside.cloudformation.create_stack(StackName="inside", TemplateBody=template)
    assert ended(cloudformation, "inside")["StackStatus"] == "CREATE_COMPLETE"
    previous = {"StackName": "inside", "UsePreviousTemplate": True, "Parameters": [{"ParameterKey": "P", "ParameterValue": "b"}]}
    change = {"StackName": "inside", "ChangeSetName": "c"}
    inside.cloudformation.create_change_set(**previous, ChangeSetName="c")
    for call, params in ((cloudformation.update_stack, previous), (cloudformation.execute_change_set, change)):
        code, text, _ = refused(call, **params)
        assert code == "ValidationError" and f"{inside.principal} wrote the template or the parameters of stack inside and" in text
    inside.cloudformation.execute_change_set(**change)
    assert ended(cloudformation, "inside")["StackStatus"] == "UPDATE_COMPLETE"
    cloudformation.update_stack(StackName="inside", TemplateBody=template)
    assert ended(cloudformation, "inside")["StackStatus"] == "UPDATE_COMPLETE"
    cloudformation.update_stack(**previous)  # the template is now that of the root user
    assert ended(cloudformation, "inside")["StackStatus"] == "UPDATE_COMPLETE"
    # The container can still send parameters for it. In the host's definition of a task, such a parameter may be a command.
    theirs = {**previous, "Parameters": [{"ParameterKey": "P", "ParameterValue": "theirs"}]}
    inside.cloudformation.create_change_set(**theirs, ChangeSetName="c")
    assert "wrote the template or the parameters of" in refused(cloudformation.execute_change_set, **change)[1]
    inside.cloudformation.update_stack(**theirs)
    assert ended(cloudformation, "inside")["StackStatus"] == "UPDATE_COMPLETE"
    kept = {"StackName": "inside", "TemplateBody": template.replace("{T:", "{U:")}
    use_previous = [{"ParameterKey": "P", "UsePreviousValue": True}]
    assert "wrote the template or the parameters of" in refused(cloudformation.update_stack, **kept, Parameters=use_previous)[1]
    cloudformation.update_stack(**kept, Parameters=[{"ParameterKey": "P", "ParameterValue": "theirs"}])
    assert ended(cloudformation, "inside")["StackStatus"] == "UPDATE_COMPLETE"
    iam.delete_role_policy(RoleName=ROLE, PolicyName="stacks")


def test_a_session_of_a_user_deploys_with_a_role_as_cdk_does(corral: Corral) -> None:
    """The session may not run programs on the host, but it may pass the role of the stack, which may."""
    iam = corral.client("iam")
    everything = "arn:aws:iam::aws:policy/AdministratorAccess"
    trusts = {"deploys": {"AWS": "123456789012"}, "executes": {"Service": "cloudformation.amazonaws.com"}}
    for name, principal in trusts.items():
        trust = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy(trust))
    iam.attach_role_policy(RoleName="executes", PolicyArn=everything)
    iam.put_role_policy(RoleName="deploys", PolicyName="p", PolicyDocument=policy(allow(["cloudformation:*", "iam:PassRole"])))
    iam.create_user(UserName="cdk")
    iam.attach_user_policy(UserName="cdk", PolicyArn=everything)
    key = iam.create_access_key(UserName="cdk")["AccessKey"]

    def client(service: str, *keys: str) -> Any:
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        return boto3.client(service, endpoint_url=corral.url, region_name="us-east-1", **dict(zip(names, keys)))

    sts = client("sts", key["AccessKeyId"], key["SecretAccessKey"])
    account = "arn:aws:iam::123456789012:role"
    session = sts.assume_role(RoleArn=f"{account}/deploys", RoleSessionName="aws-cdk")["Credentials"]
    deployer = client("cloudformation", session["AccessKeyId"], session["SecretAccessKey"], session["SessionToken"])
    body = "Resources: {T: {Type: AWS::SNS::Topic}}"
    change = {"StackName": "deployed", "ChangeSetName": "c"}
    deployer.create_change_set(**change, ChangeSetType="CREATE", TemplateBody=body, RoleARN=f"{account}/executes")
    deployer.get_waiter("change_set_create_complete").wait(**change, WaiterConfig={"Delay": 1})
    deployer.execute_change_set(**change)
    assert ended(corral.client("cloudformation"), "deployed")["StackStatus"] == "CREATE_COMPLETE"


def test_the_tags_of_images(corral: Corral, inside: Inside) -> None:
    """For a task that can control the host, the registry refuses the tag that a container set."""
    iam = corral.client("iam")
    managed = {"RoleName": ROLE, "PolicyArn": "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryPowerUser"}
    iam.attach_role_policy(**managed)
    [token] = inside.ecr.get_authorization_token()["authorizationData"]
    root, pusher = Registry(corral), Registry(corral, b64decode(token["authorizationToken"]).decode().partition(":")[2])
    name = new_repository(corral)
    plain, host = (f"/v2/{prefix}.us-east-1/{name}/manifests/latest" for prefix in ("ecr", "ecr-host"))
    good = root.push_image(name, "latest", b"good")
    assert root("GET", host).body == good
    pusher.put(name, "latest", good)  # this changes nothing
    assert root("GET", host).body == good
    evil = pusher.push_image(name, "latest", b"evil")
    assert root("GET", plain).body == evil
    for method in ("GET", "HEAD"):
        assert root(method, host).status == 403
    assert f"{inside.principal} wrote the tag latest of the repository {name} and may not" in root("GET", host).message
    assert root("GET", f"/v2/ecr-host.us-east-1/{name}/manifests/{digest_of(evil)}").body == evil
    assert root.put(name, "latest", evil).status == 201  # the root user sets the tag to the same image
    assert root("GET", host).body == evil
    other = inside.ecr.put_image(repositoryName=name, imageManifest=good.decode(), imageTag="latest")["image"]
    assert other["imageId"]["imageDigest"] == digest_of(good) and root("GET", host).status == 403
    iam.put_role_policy(RoleName=ROLE, PolicyName="host", PolicyDocument=RUN_ON_HOST)
    assert root("GET", host).body == good
    iam.delete_role_policy(RoleName=ROLE, PolicyName="host")
    iam.detach_role_policy(**managed)
