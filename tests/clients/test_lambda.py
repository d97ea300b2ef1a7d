"""Lambda: functions, invocations, permissions, logs, and messages of SNS, through boto3 and with real processes."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from botocore.exceptions import ClientError

from clients.function_help import ROLE, create, invoke, messages, zipped
from clients.stack_help import refused
from eventually import eventually
from harness import Corral

ABOUT = """
import os, boto3
def handler(event, context):
    print("event", event)
    identity = boto3.client("sts").get_caller_identity()["Arn"]
    return {
        "event": event, "identity": identity, "greeting": os.environ["GREETING"], "region": os.environ["AWS_REGION"],
        "id": context.aws_request_id, "name": context.function_name, "arn": context.invoked_function_arn,
        "memory": context.memory_limit_in_mb, "left": context.get_remaining_time_in_millis(), "group": context.log_group_name,
        "stream": context.log_stream_name, "cwd": os.getcwd() == os.environ["LAMBDA_TASK_ROOT"],
    }
"""
COUNTING = """
import os
calls = 0
def handler(event, context):
    global calls
    calls += 1
    return [os.getpid(), calls]
"""
FAILING = """
import logging
logging.getLogger().setLevel(logging.INFO)
def handler(event, context):
    logging.info("before")
    return {}[event["key"]]
"""


@pytest.fixture
def functions(client: Callable[..., Any]) -> Any:
    return client("lambda")


def test_a_function_runs_with_its_settings_and_the_credentials_of_its_role(functions: Any, client: Callable[..., Any]) -> None:
    environment = {"Variables": {"GREETING": "hello"}}
    arn = create(functions, "about", ABOUT, Environment=environment, MemorySize=256, Tags={"team": "gpu"})
    assert arn == "arn:aws:lambda:us-east-1:123456789012:function:about"
    functions.get_waiter("function_active_v2").wait(FunctionName="about")
    response = functions.invoke(FunctionName=arn, Payload=b'{"a": [1, "\xc3\xbc"]}', LogType="Tail")
    assert (response["StatusCode"], response["ExecutedVersion"]) == (200, "$LATEST") and "FunctionError" not in response
    result = json.loads(response["Payload"].read())
    assert result["event"] == {"a": [1, "ü"]} and result["greeting"] == "hello" and result["region"] == "us-east-1"
    assert result["identity"] == "arn:aws:sts::123456789012:assumed-role/function-role/about"
    assert result["id"] == response["ResponseMetadata"]["RequestId"] and result["arn"] == arn and result["name"] == "about"
    assert result["memory"] == "256" and 0 < result["left"] <= 30_000 and result["cwd"] is True
    assert result["group"] == "/aws/lambda/about" and "/[$LATEST]" in result["stream"]
    logged = messages(client("logs"), "about")
    assert logged[0] == f"START RequestId: {result['id']} Version: $LATEST" and logged[1].startswith("event {'a': [1, 'ü']}")
    assert logged[2] == f"END RequestId: {result['id']}" and "Memory Size: 256 MB\tMax Memory Used: " in logged[3]
    assert "Init Duration: " in logged[3]
    assert b64decode(response["LogResult"]).decode().splitlines() == logged
    found = functions.get_function(FunctionName="about")
    assert found["Tags"] == {"team": "gpu"} and found["Configuration"]["Environment"] == environment
    assert found["Configuration"]["LastUpdateStatus"] == "Successful" and found["Configuration"]["CodeSize"] > 0


def test_a_process_serves_several_invocations_until_the_function_changes(functions: Any) -> None:
    create(functions, "counting", COUNTING)
    pid, first = invoke(functions, "counting")
    assert first == 1 and invoke(functions, "counting") == [pid, 2]
    functions.update_function_configuration(FunctionName="counting", Description="changed")
    other, first = invoke(functions, "counting")
    assert first == 1 and other != pid
    functions.update_function_code(FunctionName="counting", ZipFile=zipped("def handler(event, context): return 'new'"))
    functions.get_waiter("function_updated_v2").wait(FunctionName="counting")
    assert invoke(functions, "counting") == "new"
    eventually(lambda: not Path(f"/proc/{pid}").exists() and not Path(f"/proc/{other}").exists(), "old processes end")


def test_the_process_of_an_earlier_revision_does_not_replace_a_newer_one(functions: Any, tmp_path: Path) -> None:
    gate, began = tmp_path / "go", tmp_path / "began"
    waiting = f"""
import os, time
def handler(event, context):
    if event.get("waits"):
        open({str(began)!r}, "w").write(str(os.getpid()))
        while not os.path.exists({str(gate)!r}): time.sleep(0.05)
    return os.getpid()
"""
    create(functions, "changed", waiting)
    functions.invoke(FunctionName="changed", InvocationType="Event", Payload=b'{"waits": true}')
    old = int(eventually(lambda: began.exists() and began.read_text(), "the first invocation runs"))
    functions.update_function_configuration(FunctionName="changed", Description="new")
    new = invoke(functions, "changed", {})
    assert new != old
    gate.touch()
    eventually(lambda: not Path(f"/proc/{old}").exists(), "the process of the earlier revision ends")
    assert invoke(functions, "changed", {}) == new


def test_a_result_that_is_too_large_is_not_read(functions: Any) -> None:
    source = "import os\ndef handler(event, context): return event.get('size', 0) * 'x' or os.getpid()"
    create(functions, "large", source, MemorySize=512)
    pid = invoke(functions, "large", {})
    assert len(invoke(functions, "large", {"size": 6_000_000})) == 6_000_000 and invoke(functions, "large", {}) == pid
    response = functions.invoke(FunctionName="large", Payload=b'{"size": 60000000}')
    error = json.loads(response["Payload"].read())
    assert (error["errorType"], response["FunctionError"]) == ("Function.ResponseSizeTooLarge", "Unhandled")
    assert "(60000002 bytes) exceeded maximum allowed payload size (6291456 bytes)" in error["errorMessage"]
    assert invoke(functions, "large", {}) != pid


def test_a_function_that_forges_its_messages_leaves_one_line_in_the_log(functions: Any, corral: Corral) -> None:
    """The function finds the socket to the server among its files."""
    source = """
import os, stat, struct
def handler(event, context):
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                for message in event["messages"]:
                    os.write(number, struct.pack(">I", len(message)) + message.encode())
        except OSError:
            pass
"""
    create(functions, "forging", source)
    forged = (
        "no JSON", "[]", '"text"', "1", "{}",
        '{"duration_ms": "x", "max_memory_mib": 1}', '{"duration_ms": NaN, "max_memory_mib": 1}',
        '{"duration_ms": 1e308, "max_memory_mib": 1}', '{"duration_ms": 1, "max_memory_mib": {}}', "[" * 100_000,
    )  # fmt: skip
    for message in forged:
        before = len(corral.log())
        response = functions.invoke(FunctionName="forging", Payload=json.dumps({"messages": [message, "null"]}).encode())
        error = json.loads(response["Payload"].read())
        assert (error["errorType"], response["FunctionError"]) == ("Runtime.InvalidMessage", "Unhandled"), message
        lines = [line for line in corral.log()[before:].splitlines() if line.strip()]
        assert len(lines) == 1 and "Traceback" not in "".join(lines), lines


def test_endless_output_does_not_delay_the_result(functions: Any) -> None:
    source = "import subprocess\ndef handler(event, context):\n    subprocess.Popen(['yes', 1000 * 'x'])\n    return 'done'"
    create(functions, "printing", source)
    assert invoke(functions, "printing") == "done" and invoke(functions, "printing") == "done"


def test_long_lines_become_several_events(functions: Any, client: Callable[..., Any]) -> None:
    create(functions, "long-lines", "def handler(event, context): print('a' * 300_000 + 'end'); print('€' * 200_000 + 'end')")
    invoke(functions, "long-lines")
    streams = client("logs").describe_log_streams(logGroupName="/aws/lambda/long-lines")["logStreams"]
    pages = client("logs").get_paginator("filter_log_events").paginate(logGroupName="/aws/lambda/long-lines")
    found = [event["message"] for page in pages for event in page["events"]]
    assert len(streams) == 1 and max(len(message.encode()) for message in found) <= 262_118
    printed = "".join(message for message in found if set(message) <= set("a€end"))
    assert printed == "a" * 300_000 + "end" + "€" * 200_000 + "end"


LEAVING = """
import os, subprocess
def handler(event, context):
    for _ in range(3):
        subprocess.run(["sh", "-c", "true & exit 0"])
    return os.getppid()
"""


def test_the_supervisor_reaps_the_processes_that_a_function_leaves(functions: Any) -> None:
    create(functions, "leaving", LEAVING)
    supervisor = invoke(functions, "leaving")
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    eventually(lambda: len(children.read_text().split()) == 1, "only the process of the function is left")


def test_an_error_of_the_function_is_its_result(functions: Any, client: Callable[..., Any]) -> None:
    create(functions, "failing", FAILING)
    response = functions.invoke(FunctionName="failing", Payload=json.dumps({"key": "missing"}))
    error = json.loads(response["Payload"].read())
    assert response["FunctionError"] == "Unhandled" and response["StatusCode"] == 200
    assert (error["errorType"], error["errorMessage"]) == ("KeyError", "'missing'")
    [frame] = error["stackTrace"]
    assert 'index.py", line 6, in handler\n    return {}[event["key"]]\n' in frame
    [traceback] = [message for message in messages(client("logs"), "failing") if message.startswith("[ERROR]")]
    assert traceback.splitlines()[:2] == ["[ERROR] KeyError: 'missing'", "Traceback (most recent call last):"]
    assert any(message.startswith("[INFO]\t") and message.endswith("\tbefore") for message in messages(client("logs"), "failing"))


@pytest.mark.parametrize(
    "source, params, type_, text",
    [
        ("def other(): pass", {}, "Runtime.HandlerNotFound", "Handler 'handler' missing on module 'index'"),
        (
            "import missing_module",
            {},
            "Runtime.ImportModuleError",
            "Unable to import module 'index': No module named 'missing_module'",
        ),
        ("def handler(", {}, "Runtime.UserCodeSyntaxError", "Syntax error in module 'index'"),
        ("import os\ndef handler(e, c): os._exit(3)", {}, "Runtime.ExitError", "Runtime exited with error: exit status 3"),
        ("import os\ndef handler(e, c): os._exit(125)", {}, "Runtime.ExitError", "Runtime exited with error: exit status 125"),
        ("import os\ndef handler(e, c): os._exit(137)", {}, "Runtime.ExitError", "Runtime exited with error: exit status 137"),
        ("import os\ndef handler(e, c): os.kill(os.getpid(), 9)", {}, "Runtime.ExitError", "Runtime exited with error: signal 9"),
        ("def handler(e, c): return {1, 2}", {}, "Runtime.MarshalError", "Unable to marshal response"),
        ("import time\ndef handler(e, c): time.sleep(99)", {"Timeout": 1}, "Sandbox.Timedout", "Task timed out after 1.00 seconds"),
        (
            "import time\ndef handler(e, c):\n    kept = bytearray(300_000_000)\n    time.sleep(99)",
            {"MemorySize": 128},
            "Runtime.ExitError",
            "more than its MemorySize of 128 MB",
        ),
    ],
)
def test_a_function_that_cannot_run_or_end(functions: Any, source: str, params: dict[str, Any], type_: str, text: str) -> None:
    name = f"bad-{type_.partition('.')[2]}-{crc32(source.encode())}"
    create(functions, name, source, **params)
    for _ in range(2):  # the next invocation gets a new process
        response = functions.invoke(FunctionName=name)
        error = json.loads(response["Payload"].read())
        assert response["FunctionError"] == "Unhandled" and error["errorType"] == type_ and text in error["errorMessage"]


def test_a_timeout_also_ends_the_processes_that_the_function_has_started(functions: Any, tmp_path: Path) -> None:
    source = f"""
import os, subprocess, time
def handler(event, context):
    children = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    with open("{tmp_path}/pids", "w") as file:
        file.write(" ".join(str(each.pid) for each in children) + f" {{os.getpid()}}")
    time.sleep(600)
"""
    create(functions, "parent", source, Timeout=2)
    response = functions.invoke(FunctionName="parent")
    assert response["FunctionError"] == "Unhandled"
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 3 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_code_in_s3(functions: Any, client: Callable[..., Any]) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="code")
    content = zipped(
        "import part\ndef handler(event, context): return part.NAME", **{"part/__init__.py": "NAME = 'from a package'"}
    )
    s3.put_object(Bucket="code", Key="function.zip", Body=content)
    create(functions, "in-s3", "", Code={"S3Bucket": "code", "S3Key": "function.zip"})
    s3.delete_object(Bucket="code", Key="function.zip")
    assert invoke(functions, "in-s3") == "from a package"
    missing = {"S3Bucket": "code", "S3Key": "function.zip"}
    code, text = refused(lambda: create(functions, "not-in-s3", "", Code=missing))
    assert code == "InvalidParameterValueException" and "S3 Error Code: NoSuchKey" in text


def test_what_corral_does_not_run_is_refused_by_name(functions: Any) -> None:
    for params, text in (
        ({"Runtime": "nodejs20.x"}, "not in nodejs20.x"),
        ({"Runtime": "python2.7"}, "not in python2.7"),
        ({"PackageType": "Image", "Code": {"ImageUri": "image"}}, "no container images"),
        ({"Publish": True}, "$LATEST"),
        ({"Code": {"ZipFile": b"no zip"}}, "Could not unzip"),
        ({"Code": {}}, "provide a source"),
        ({"Environment": {"Variables": {"AWS_REGION": "x"}}}, "Reserved keys used in this request: AWS_REGION"),
    ):
        code, message = refused(lambda params=params: create(functions, "refused", "", **params))  # type: ignore[misc]
        assert code == "InvalidParameterValueException" and text in message
    assert refused(lambda: functions.invoke(FunctionName="refused"))[0] == "ResourceNotFoundException"
    assert refused(lambda: functions.get_function(FunctionName="refused", Qualifier="7"))[0] == "ResourceNotFoundException"
    with pytest.raises(ClientError, match="PublishVersion"):
        functions.publish_version(FunctionName="refused")
    create(functions, "twice", "")
    assert refused(lambda: functions.invoke(FunctionName="twice", Payload=b"{"))[0] == "InvalidRequestContentException"
    assert functions.invoke(FunctionName="twice", InvocationType="DryRun")["StatusCode"] == 204


def test_listing_tags_and_deletion(functions: Any) -> None:
    arns = [create(functions, f"listed-{number}", "") for number in range(3)]
    pages = functions.get_paginator("list_functions").paginate(PaginationConfig={"PageSize": 2})
    assert set(arns) <= {each["FunctionArn"] for page in pages for each in page["Functions"]}
    functions.tag_resource(Resource=arns[0], Tags={"a": "1", "b": "2"})
    functions.untag_resource(Resource=arns[0], TagKeys=["a"])
    assert functions.list_tags(Resource=arns[0])["Tags"] == {"b": "2"}
    for arn in arns:
        functions.delete_function(FunctionName=arn)
    assert refused(lambda: functions.get_function_configuration(FunctionName=arns[0]))[0] == "ResourceNotFoundException"


def test_permissions(functions: Any) -> None:
    create(functions, "allowed", "")
    given = {"FunctionName": "allowed", "StatementId": "one", "Action": "lambda:InvokeFunction", "Principal": "sns.amazonaws.com"}
    statement = json.loads(functions.add_permission(**given, SourceArn="arn:aws:sns:us-east-1:123456789012:t")["Statement"])
    assert statement["Condition"] == {"ArnLike": {"AWS:SourceArn": "arn:aws:sns:us-east-1:123456789012:t"}}
    assert json.loads(functions.get_policy(FunctionName="allowed")["Policy"])["Statement"] == [statement]
    functions.remove_permission(FunctionName="allowed", StatementId="one")
    assert refused(lambda: functions.get_policy(FunctionName="allowed"))[0] == "ResourceNotFoundException"


WRITING = """
import json, os
def handler(event, context):
    with open(os.environ["RESULTS"], "a") as file:
        file.write(json.dumps(event) + "\\n")
    if "fails" in str(event):
        raise ValueError("again")
"""


def test_an_asynchronous_invocation_is_tried_three_times(functions: Any, client: Callable[..., Any], tmp_path: Path) -> None:
    results = tmp_path / "results"
    create(functions, "writing", WRITING, Environment={"Variables": {"RESULTS": str(results)}})
    response = functions.invoke(FunctionName="writing", InvocationType="Event", Payload=b'{"it": "fails"}')
    assert response["StatusCode"] == 202 and response["Payload"].read() == b""
    functions.invoke(FunctionName="writing", InvocationType="Event", Payload=b'{"it": "works"}')
    eventually(lambda: results.exists() and results.read_text().count("fails") == 3, "three attempts")
    assert results.read_text().count("works") == 1
    cloudwatch = client("cloudwatch")

    def counted(metric: str) -> float:
        dimensions = [{"Name": "FunctionName", "Value": "writing"}]
        now = datetime.now(UTC)
        times = {"StartTime": now - timedelta(minutes=10), "EndTime": now + timedelta(minutes=5), "Period": 3600}
        params = {"Namespace": "AWS/Lambda", "MetricName": metric, "Dimensions": dimensions, "Statistics": ["Sum"]}
        return float(sum(each["Sum"] for each in cloudwatch.get_metric_statistics(**params, **times)["Datapoints"]))

    eventually(lambda: (counted("Invocations"), counted("Errors")) == (4, 3), "the metrics of four attempts")
    assert counted("Duration") > 0


def test_a_topic_invokes_a_function_that_allows_it(functions: Any, client: Callable[..., Any], tmp_path: Path) -> None:
    sns, sqs, results = client("sns"), client("sqs"), tmp_path / "results"
    variables = {"Variables": {"RESULTS": str(results)}}
    arn = create(functions, "subscribed", WRITING, Environment=variables)
    topic = sns.create_topic(Name="to-functions")["TopicArn"]
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": dead_arn,
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"Policy": policy})
    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn})}
    subscription = sns.subscribe(TopicArn=topic, Protocol="lambda", Endpoint=arn, Attributes=redrive)["SubscriptionArn"]
    sns.publish(TopicArn=topic, Message="not allowed yet")
    [letter] = sqs.receive_message(QueueUrl=dead)["Messages"]
    assert json.loads(letter["Body"])["Message"] == "not allowed yet"
    given = {"Action": "lambda:InvokeFunction", "Principal": "sns.amazonaws.com", "SourceArn": topic}
    functions.add_permission(FunctionName="subscribed", StatementId="sns", **given)
    attributes = {"kind": {"DataType": "String", "StringValue": "test"}}
    texts = json.dumps({"default": "for others", "lambda": "for functions"})
    sent = sns.publish(TopicArn=topic, Message=texts, MessageStructure="json", Subject="new", MessageAttributes=attributes)
    [record] = json.loads(eventually(lambda: results.exists() and results.read_text(), "the event"))["Records"]
    assert record["EventSource"] == "aws:sns" and record["EventSubscriptionArn"] == subscription
    notification = record["Sns"]
    assert notification["MessageId"] == sent["MessageId"] and notification["TopicArn"] == topic
    assert (notification["Message"], notification["Subject"]) == ("for functions", "new")
    assert notification["MessageAttributes"] == {"kind": {"Type": "String", "Value": "test"}}
    assert {"Type", "Timestamp", "SignatureVersion", "Signature", "SigningCertUrl", "UnsubscribeUrl"} <= notification.keys()


def test_a_kill_leaves_no_process_and_repeats_asynchronous_invocations(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral = own_corral().start()
    functions, source = (
        corral.client("lambda"),
        f"""
import os, subprocess, time
def handler(event, context):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open("{tmp_path}/runs", "a") as file:
        file.write(f"{{context.aws_request_id}} {{os.getppid()}} {{os.getpid()}} {{child.pid}}\\n")
    while not os.path.exists("{tmp_path}/go"):
        time.sleep(0.05)
    with open("{tmp_path}/done", "a") as file:
        file.write(context.aws_request_id)
""",
    )
    create(functions, "long", source, Timeout=900)
    functions.invoke(FunctionName="long", InvocationType="Event")
    runs = tmp_path / "runs"
    [first] = eventually(lambda: runs.exists() and runs.read_text().splitlines(), "the first run")
    request_id, *pids = first.split()
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    corral.kill("corral.server")
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the processes of the function end")
    corral.start()
    second = eventually(lambda: runs.read_text().splitlines()[1:], "the second run")[0]
    assert second.split()[0] == request_id
    (tmp_path / "go").touch()
    eventually(lambda: (tmp_path / "done").exists(), "the end of the function")
    assert (tmp_path / "done").read_text() == request_id
    corral.stop()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in second.split()[1:]), "no process after the end")
    assert not os.listdir(corral.data / "functions")


def test_isolation_refuses_functions(own_corral: Callable[..., Corral]) -> None:
    functions = own_corral("sim:2", "--isolate", "true").start().client("lambda")
    code, text = refused(lambda: create(functions, "isolated", ""))
    assert code == "InvalidParameterValueException" and "--isolate" in text


def test_roles_and_names(functions: Any) -> None:
    assert ROLE.endswith("/function-role")
    other_region = "arn:aws:lambda:eu-west-1:123456789012:function:about"
    assert "not reachable in this region" in refused(lambda: functions.invoke(FunctionName=other_region))[1]
