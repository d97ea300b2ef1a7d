"""Attacks in a real browser: pages of other origins, whose requests have the cookie of the console, and text with markup."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Error, Page, Request, expect

from console.browser import DEADLINE_MS, EVIL, REBOUND, Console, load
from harness import Corral, container, eventually

# The script of an object of S3, opened by a presigned URL. It has the origin of the API, on the host name of the console.
ATTACK = """
const attempts = {
  "read the session": async () => (await fetch(console_ + "/session", { credentials: "include" })).text(),
  "read the page": async () => (await fetch(console_ + "/", { credentials: "include" })).text(),
  "call with a header": async () =>
    (await fetch(console_ + "/call/sqs/CreateQueue", {
      method: "POST", credentials: "include", body: '{"QueueName": "stolen"}', headers: { "X-Corral-Console": "x" },
    })).text(),
  "take the secret": async () => localStorage.getItem("corral-console") ?? Promise.reject(new Error("none")),
  "open the stream": async () =>
    (await fetch(console_ + "/changes", { method: "POST", credentials: "include", body: '{"topics": ["tasks"]}' })).text(),
  "call without reading the answer": async () =>
    (await fetch(console_ + "/call/sqs/CreateQueue", {
      method: "POST", mode: "no-cors", credentials: "include", body: '{"QueueName": "stolen"}',
    })).type,
  "import the code": async () => import(console_ + "/static/api.js"),
};
async function attack() {
  const found = {};
  for (const [name, attempt] of Object.entries(attempts)) {
    try { found[name] = "succeeded: " + (await attempt()); } catch (error) { found[name] = "refused"; }
  }
  return found;
}
function post() {
  const form = document.createElement("form");
  Object.assign(form, { method: "POST", action: console_ + "/call/sqs/CreateQueue", enctype: "text/plain", target: "answer" });
  const field = document.createElement("input");
  Object.assign(field, { name: '{"QueueName": "stolen", "x": "', value: '"}' });
  form.append(field);
  document.body.append(form);
  form.submit();
}
"""
FRAMES = '<iframe name="console" src="{console}/"></iframe><iframe name="answer"></iframe>'


def hostile_page(console: Console) -> Page:
    """Open an object with a script by a presigned URL, in the browser that has a session of the console."""
    s3 = console.corral.client("s3")
    s3.create_bucket(Bucket="hostile")
    origin = console.url.rstrip("/")
    html = f"<!doctype html><body>{FRAMES.format(console=origin)}<script>const console_ = {json.dumps(origin)};{ATTACK}</script>"
    s3.put_object(Bucket="hostile", Key="page.html", Body=html.encode(), ContentType="text/html")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "hostile", "Key": "page.html"})
    page = console.page.context.new_page()
    load(page, url, page.locator("iframe[name=answer]"))
    assert page.evaluate("typeof attack") == "function", "the script of the object runs"
    assert urlsplit(page.url).netloc != urlsplit(console.url).netloc
    return page


def test_an_object_with_a_script_cannot_act_in_the_console(console: Console) -> None:
    console.open("queues")
    page, sent = hostile_page(console), list[Request]()
    page.on("request", lambda request: sent.append(request))
    found: dict[str, str] = page.evaluate("attack()")
    assert found and set(found.values()) == {"refused"}, found

    with page.expect_response("**/call/sqs/CreateQueue") as answered:
        page.evaluate("post()")
    assert answered.value.status == 403
    calls = [request for request in sent if "/call/sqs/" in request.url]
    assert any("corral_console_" in request.all_headers().get("cookie", "") for request in calls), "the attack had the cookie"
    assert "QueueUrls" not in console.corral.client("sqs").list_queues()

    page.close()
    expect(console.page.locator("#connection")).to_have_text("live")
    console.open("queues")
    expect(console.page.get_by_text("No queue.")).to_be_visible()


def test_no_other_page_shows_the_console_in_a_frame_or_holds_its_window(console: Console) -> None:
    page = hostile_page(console)
    frame = page.frame("console")
    assert frame is not None and frame.url.startswith("chrome-error://")
    with pytest.raises(Error):
        page.evaluate("frames['console'].document.body.innerHTML")
    with page.expect_popup() as popup:
        page.evaluate("window.held = open(console_ + '/'), null")
    own = popup.value.locator("#identity", has_text="root")  # the person's own session, but not for the other page
    with suppress(AssertionError):
        expect(own).to_be_visible(timeout=DEADLINE_MS / 4)
    if not own.is_visible():  # another test has changed the networks of the machine, and the browser has given up requests
        popup.value.reload()
    expect(own).to_be_visible()
    assert page.evaluate("held.closed"), "the two windows have nothing to do with each other"
    assert popup.value.evaluate("window.opener") is None
    popup.value.close()
    page.close()


def test_a_name_that_was_made_to_lead_here_shows_nothing(console: Console) -> None:
    page = console.page.context.new_page()
    url = f"http://{REBOUND}:{console.corral.console_port}/"
    load(page, url, page.locator("body"))
    answer = page.goto(url)
    assert answer is not None and answer.status == 421
    assert page.evaluate("fetch('/session').then(answer => answer.status)") == 421
    page.close()


def test_stored_text_never_becomes_markup(console: Console) -> None:
    """Each text that may have any characters has a tag with a script. The pages show all of them as text."""
    corral = console.corral
    puts = (put_tasks, put_objects, put_alarms, put_stack, put_groups, put_jobs)
    pages = {path: shown for put in puts for path, shown in put(corral)}
    page = console.page
    for path, shown in pages.items():
        console.open(path)
        expect(page.get_by_text("Loading …")).to_have_count(0)
        page.evaluate("document.querySelectorAll('main details').forEach(each => { each.open = true })")
        for text in shown:
            expect(page.locator("main").get_by_text(text).first, f"{text} in {path}").to_be_visible()
        assert page.locator("[onerror], img[src=x], main script").count() == 0, path
    for path in ("", "tasks", "batch", "groups", "buckets", "stacks", "metrics", "logs"):
        console.open(path)
        expect(page.get_by_text("Loading …")).to_have_count(0)
        assert page.locator("[onerror], img[src=x], main script").count() == 0, path


Shown = list[tuple[str, list[str]]]


def put_tasks(corral: Corral) -> Shown:
    ecs, logs = corral.client("ecs"), corral.client("logs")
    variables = [{"name": "LABEL", "value": f"value {EVIL}"}]
    command = ["sh", "-c", f"echo 'line {EVIL}'; exec sleep 600 # command {EVIL}"]
    definition = container(command, log_prefix="evil", environment=variables)
    ecs.register_task_definition(family="evil", containerDefinitions=[definition])
    [task] = ecs.run_task(taskDefinition="evil")["tasks"]
    name = f"evil/main/{task['taskArn'].rpartition('/')[2]}"

    def has_line() -> bool:
        try:
            return bool(logs.get_log_events(logGroupName="/tests", logStreamName=name)["events"])
        except logs.exceptions.ResourceNotFoundException:
            return False

    eventually(has_line, "the line of the log")
    ecs.stop_task(task=task["taskArn"], reason=f"reason {EVIL}")
    logs.create_log_stream(logGroupName="/tests", logStreamName=f"stream {EVIL}")
    return [
        (
            f"tasks/default/{task['taskArn'].rpartition('/')[2]}",
            [f"value {EVIL}", f"line {EVIL}", f"command {EVIL}", f"reason {EVIL}"],
        ),
        ("logs/%2Ftests", [f"stream {EVIL}"]),
        (f"logs/%2Ftests/{quote(f'stream {EVIL}', safe='')}", [f"stream {EVIL}"]),
    ]


def put_objects(corral: Corral) -> Shown:
    s3, sqs = corral.client("s3"), corral.client("sqs")
    s3.create_bucket(Bucket="evil")
    s3.put_object(
        Bucket="evil", Key=f"folder {EVIL}/key {EVIL}.html", Body=f"body {EVIL}".encode(), Metadata={"about": f"metadata {EVIL}"},
        ContentType=f"text/html; {EVIL}",
    )  # fmt: skip
    url = sqs.create_queue(QueueName="evil", tags={"tag": f"tag {EVIL}"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody=f"message {EVIL}")
    folder, key = quote(f"folder {EVIL}/", safe=""), quote(f"folder {EVIL}/key {EVIL}.html", safe="")
    return [
        ("buckets/evil", [f"folder {EVIL}/"]),
        (f"buckets/evil/{folder}", [f"key {EVIL}.html"]),
        (f"buckets/evil/{key}", [f"key {EVIL}.html", f"body {EVIL}", f"metadata {EVIL}"]),
    ]


def put_alarms(corral: Corral) -> Shown:
    cloudwatch = corral.client("cloudwatch")
    name, dimension = f"alarm {EVIL}", {"Name": f"name {EVIL}", "Value": f"value {EVIL}"}
    point = {"MetricName": f"metric {EVIL}", "Dimensions": [dimension], "Value": 1}
    cloudwatch.put_metric_data(Namespace=f"Evil {EVIL}", MetricData=[point])
    cloudwatch.put_metric_alarm(
        AlarmName=name, AlarmDescription=f"description {EVIL}", MetricName=f"metric {EVIL}", Namespace=f"Evil {EVIL}",
        Dimensions=[dimension], Period=60, EvaluationPeriods=1, Threshold=1.0, Statistic="Sum",
        ComparisonOperator="GreaterThanThreshold",
    )  # fmt: skip
    cloudwatch.set_alarm_state(AlarmName=name, StateValue="ALARM", StateReason=f"state {EVIL}")
    cloudwatch.put_composite_alarm(AlarmName=f"composite {EVIL}", AlarmRule=f'ALARM("{name}")')
    return [
        (f"metrics/alarm/{quote(name, safe='')}", [name, f"state {EVIL}", f"metric {EVIL}", f"value {EVIL}"]),
        (f"metrics/alarm/{quote(f'composite {EVIL}', safe='')}", [f"composite {EVIL}", f'ALARM("{name}")']),
        ("metrics", [name, f"composite {EVIL}"]),
    ]


def put_stack(corral: Corral) -> Shown:
    template: dict[str, Any] = {
        "Description": f"description {EVIL}",
        "Parameters": {"Given": {"Type": "String"}},
        "Resources": {"Topic": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "of-stack"}}},
        "Outputs": {"Shown": {"Value": f"output {EVIL}", "Description": f"about {EVIL}"}},
    }
    given = [{"ParameterKey": "Given", "ParameterValue": f"parameter {EVIL}"}]
    cloudformation = corral.client("cloudformation")
    cloudformation.create_stack(StackName="evil", TemplateBody=json.dumps(template), Parameters=given)

    def status() -> str:
        return str(cloudformation.describe_stacks(StackName="evil")["Stacks"][0]["StackStatus"])

    eventually(lambda: status() == "CREATE_COMPLETE", "the stack")
    return [("stacks/evil", [f"output {EVIL}", f"about {EVIL}", f"parameter {EVIL}"]), ("stacks", [f"description {EVIL}"])]


def put_groups(corral: Corral) -> Shown:
    name = "<img/src=x/onerror=alert(1)>"  # without spaces
    corral.group(name)
    return [(f"groups/{quote(name, safe='')}", [name]), ("groups", [name])]


def put_jobs(corral: Corral) -> Shown:
    batch = corral.client("batch")
    batch.create_compute_environment(computeEnvironmentName="evil", type="UNMANAGED", tags={"corral:cluster": "default"})
    eventually(lambda: batch.describe_compute_environments()["computeEnvironments"][0]["status"] == "VALID", "the environment")
    batch.create_job_queue(jobQueueName="evil", priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": "evil"}])
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    batch.register_job_definition(
        jobDefinitionName="evil", type="container",
        containerProperties={
            "image": "corral/host", "command": ["sh", "-c", f"exec sleep 600 # job {EVIL}"], "resourceRequirements": needs,
        },
    )  # fmt: skip
    job = batch.submit_job(jobName="evil", jobQueue="evil", jobDefinition="evil")["jobId"]
    batch.terminate_job(jobId=job, reason=f"terminated {EVIL}")
    eventually(lambda: batch.describe_jobs(jobs=[job])["jobs"][0]["status"] == "FAILED", "the end of the job")
    return [(f"batch/job/{job}", [f"job {EVIL}", f"terminated {EVIL}"]), ("batch/evil", [f"terminated {EVIL}"])]
