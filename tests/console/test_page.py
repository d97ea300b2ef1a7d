"""The pages of the console in a real browser: one server, one browser and one session for all flows.

Whatever the browser prints as an error fails the test in which it happens, and so does a dialog that a name has opened.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from console.browser import EVIL, REFUSED, Console, opened_with
from console.page import new_user, own_client
from harness import Corral, container, eventually

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
PATHS = ("", "tasks", "batch", "services", "groups", "queues", "buckets", "stacks", "metrics", "logs", "cost")


def test_see_a_task_wait_read_why_stop_the_holder_and_watch_it_start(console: Console) -> None:
    page, ecs = console.page, console.corral.client("ecs")
    ecs.register_task_definition(
        family="holder", containerDefinitions=[container(["sh", "-c", f"exec sleep 600 # {EVIL}"], gpus=2)]
    )
    [holder] = ecs.run_task(taskDefinition="holder")["tasks"]
    console.open("")
    gpus = page.get_by_role("region", name="GPUs", exact=True)
    expect(gpus.get_by_role("link", name="holder")).to_have_count(2)

    console.press("Run …")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Command", exact=True).first.fill("sleep 600")
    dialog.get_by_role("textbox", name="Name", exact=True).fill("waiter")
    expect(dialog.locator(".same code")).to_have_text("corral run -d -g 1 -n waiter -- sh -c 'sleep 600'")
    dialog.get_by_role("button", name="Run", exact=True).click()
    why = page.locator("main [role=status]")
    expect(why).to_contain_text("Place 1 in line. holder hold")
    expect(why).to_contain_text("needs 1 GPU")
    waiter = page.url

    console.open("")
    line = page.get_by_role("region", name="Waiting line", exact=True).first
    expect(line.get_by_role("row", name="waiter")).to_contain_text("needs 1 GPU")
    gpus.get_by_role("link", name="holder").first.click()
    expect(page.locator("main h1")).to_have_text("holder")
    expect(page.get_by_text(f"sh -c exec sleep 600 # {EVIL}")).to_be_visible()
    console.restart_server()
    console.press("Stop", confirm="Stop")
    expect(page.locator("main .head .state")).to_contain_text("STOPPED")

    page.goto(waiter)
    expect(page.locator("main .head .state")).to_have_text("RUNNING")
    console.press("Pause", confirm="Pause")
    expect(page.locator("main .head .state")).to_have_text("PAUSED")
    expect(why).to_contain_text("1 GiB in the memory of the host")
    console.open("")
    paused = page.get_by_role("region", name="Paused tasks", exact=True).first
    expect(paused.get_by_role("row", name="waiter")).to_contain_text("PAUSED")
    page.goto(waiter)
    console.press("Resume", confirm="Resume")
    expect(page.locator("main .head .state")).to_have_text("RUNNING")
    console.press("Stop", confirm="Stop")
    expect(page.locator("main .head .state")).to_contain_text("STOPPED")
    assert ecs.describe_tasks(tasks=[holder["taskArn"]])["tasks"][0]["lastStatus"] == "STOPPED"


def test_follow_a_log_with_a_progress_bar(console: Console, tmp_path: Path) -> None:
    page, ecs = console.page, console.corral.client("ecs")
    script = (
        f"printf '\\033[31mred\\033[0m first\\n'; printf '10%% done\\r'; until test -e {tmp_path}/go; do sleep 0.1; done; "
        f"printf '20%% done\\r'; until test -e {tmp_path}/end; do sleep 0.1; done; printf '100%% done\\r\\nlast {EVIL}\\n'"
    )
    ecs.register_task_definition(family="bar", containerDefinitions=[container(["sh", "-c", script], log_prefix="bar")])
    task = ecs.run_task(taskDefinition="bar")["tasks"][0]["taskArn"].rpartition("/")[2]
    console.open(f"tasks/default/{task}")
    rows = page.locator(".lines .row")
    expect(rows).to_have_text(["red first", "10% done"])
    expect(rows.first.locator("span.c1")).to_have_text("red")
    (tmp_path / "go").touch()
    expect(rows).to_have_text(["red first", "20% done"])  # drawn over the 10%
    console.restart_server()
    (tmp_path / "end").touch()
    expect(rows).to_have_text(["red first", "100% done", f"last {EVIL}"])
    page.get_by_label("Search in the log").fill("LAST")
    expect(page.locator(".lines mark")).to_have_text("last")
    expect(page.locator(".log-bar output")).to_have_text("1 of 1 in 3 lines")


def test_a_log_of_100_000_lines(console: Console) -> None:
    page, ecs = console.page, console.corral.client("ecs")
    numbers = container(["seq", "-f", "line %06.0f", "0", "99999"], log_prefix="long")
    ecs.register_task_definition(family="long", containerDefinitions=[numbers])
    task = ecs.run_task(taskDefinition="long")["tasks"][0]["taskArn"].rpartition("/")[2]
    console.open(f"logs/%2Ftests/long%2Fmain%2F{task}")
    rows = page.locator(".lines .row")
    expect(page.locator(".log-bar output")).to_have_text("100,000 lines")
    expect(rows.last).to_have_text("line 099999")
    assert rows.count() < 200  # only the lines in sight are elements
    page.get_by_label("Search in the log").fill("line 04200")
    expect(page.locator(".row.current")).to_have_text("line 042000")
    expect(page.locator(".log-bar output")).to_have_text("1 of 10 in 100,000 lines")
    page.keyboard.press("Enter")
    expect(page.locator(".row.current")).to_have_text("line 042001")


def test_retry_the_failed_children_of_an_array(console: Console, tmp_path: Path) -> None:
    page, batch = console.page, console.corral.client("batch")
    batch.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
    eventually(lambda: batch.describe_compute_environments()["computeEnvironments"][0]["status"] == "VALID", "the environment")
    batch.create_job_queue(jobQueueName="q", priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": "here"}])
    command = [
        "sh",
        "-c",
        f'echo "index $AWS_BATCH_JOB_ARRAY_INDEX"; test "$AWS_BATCH_JOB_ARRAY_INDEX" != 2 || test -e {tmp_path}/fixed',
    ]
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    batch.register_job_definition(
        jobDefinitionName="parts", type="container",
        containerProperties={"image": "corral/host", "command": command, "resourceRequirements": needs},
    )  # fmt: skip
    array = batch.submit_job(jobName="parts", jobQueue="q", jobDefinition="parts", arrayProperties={"size": 4})["jobId"]
    console.open(f"batch/job/{array}")
    squares = page.get_by_role("list", name="Children of the array")
    expect(squares.get_by_role("link", name="child 2: FAILED, exit code 1")).to_be_visible()
    expect(squares.locator(".SUCCEEDED")).to_have_count(3)
    (tmp_path / "fixed").touch()
    console.restart_server()
    console.press("Retry 1 failed …", confirm="Retry 1 failed")
    expect(page.locator("main .head .state")).to_have_text("SUCCEEDED")
    assert array not in page.url
    expect(page.locator(".lines .row")).to_have_text(["index 2"])


def test_upload_preview_and_download(console: Console, tmp_path: Path) -> None:
    page = console.page
    console.open("buckets")
    page.get_by_role("button", name="Create …").click()
    page.get_by_role("dialog").get_by_role("textbox", name="Name", exact=True).fill("data")
    page.get_by_role("dialog").get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("main h1")).to_have_text("data")

    text = f"<script>alert(1)</script> {EVIL}\n"
    (tmp_path / f"{EVIL}.txt").write_text(text)
    (tmp_path / "square.png").write_bytes(png())
    page.get_by_label("Upload files").set_input_files([tmp_path / f"{EVIL}.txt", tmp_path / "square.png"])
    page.get_by_role("link", name=f"{EVIL}.txt").click()
    expect(page.locator(".preview pre")).to_have_text(text)
    with console.downloaded(f"{EVIL}.txt".replace("<", "_").replace(">", "_")) as content:
        console.press("Download")
    assert content == [text.encode()]

    console.open("buckets/data/square.png")
    image = page.get_by_role("img", name="Preview of square.png")
    expect(image).to_be_visible()
    assert image.evaluate("async image => { await image.decode(); return image.naturalWidth }") == 8
    console.restart_server()
    console.press("Delete", confirm="Delete")
    expect(page.get_by_role("link", name=f"{EVIL}.txt")).to_be_visible()
    expect(page.get_by_role("link", name="square.png")).to_have_count(0)


def test_scale_a_group_and_see_the_activity(console: Console) -> None:
    page = console.page
    console.corral.group("workers")
    console.open("groups/workers")
    page.get_by_role("button", name="Scale …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("spinbutton", name="Desired instances").fill("1")
    command = "aws autoscaling set-desired-capacity --auto-scaling-group-name workers --desired-capacity 1"
    expect(dialog.locator(".same code")).to_have_text(command)
    console.restart_server()
    dialog.get_by_role("button", name="Scale", exact=True).click()
    activities = page.get_by_role("region", name="Scaling activities").first
    expect(activities.get_by_role("row", name="Launching a new EC2 instance")).to_contain_text("Successful")
    expect(page.get_by_role("region", name="Instances", exact=True).first).to_contain_text("g5.xlarge")
    console.corral.client("autoscaling").set_desired_capacity(AutoScalingGroupName="workers", DesiredCapacity=0)
    expect(activities.get_by_role("row", name="Terminating EC2 instance")).to_be_visible()


def test_an_update_changes_styles_and_keeps_what_the_person_does(console: Console) -> None:
    """The policy of the page forbids attributes with styles, so an update sets them in another way than other attributes."""
    console.open("cost")
    script = """async () => {
      const { h, meter, update } = await import("/static/dom.js");
      const box = document.body.appendChild(document.createElement("div"));
      const draw = share => update(box, [meter(share, "share"), h("details", {}, h("summary", {}, "more")), h("input", {})]);
      draw(0.2);
      box.querySelector("details").open = true;
      box.querySelector("input").value = "typed";
      box.querySelector("input").focus();
      draw(0.7);
      const kept = [box.querySelector("details").open, document.activeElement.value];
      const width = box.querySelector(".meter span").style.width;
      box.remove();
      return [width, ...kept];
    }"""
    assert console.page.evaluate(script) == ["70%", True, "typed"]


def test_many_gpus_are_squares(browser: Browser, own_corral: Callable[..., Corral]) -> None:
    corral = own_corral("sim:64").start()
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="holder", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    console = opened_with(corral, browser, corral.own("CreateConsoleLink")["code"], "root")
    gpus = console.page.get_by_role("region", name="GPUs", exact=True)
    expect(gpus.get_by_role("listitem")).to_have_count(64)
    expect(gpus.locator("a[href]")).to_have_count(0)
    [task] = ecs.run_task(taskDefinition="holder")["tasks"]
    held = gpus.get_by_role("link", name="holder")
    expect(held).to_have_class("held")
    assert not serious_findings(console.page)
    held.hover()
    expect(held).to_have_attribute("title", re.compile(r"GPU \d+: \d+%, holder"))
    held.click()
    expect(console.page.locator("main h1")).to_have_text("holder")
    console.open("")
    ecs.stop_task(task=task["taskArn"])
    expect(gpus.get_by_role("listitem")).to_have_count(64)
    expect(gpus.locator("a[href]")).to_have_count(0)
    assert not console.errors
    console.page.context.close()


def test_look_at_messages_of_a_queue(console: Console) -> None:
    sqs = console.corral.client("sqs")
    url = sqs.create_queue(QueueName="letters")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody=EVIL)
    console.open("queues/letters")
    console.press("Look at messages")
    expect(console.page.locator("main pre")).to_have_text(EVIL)
    [message] = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_user_sees_and_does_what_policies_allow(console: Console, browser: Browser) -> None:
    """A page without permission says which one is missing, and the others work."""
    corral = console.corral
    statements = [
        {"Effect": "Allow", "Action": ["sqs:*", "corral:DescribeHosts", "cloudwatch:GetMetricData"], "Resource": "*"},
        {"Effect": "Deny", "Action": "sqs:DeleteQueue", "Resource": "*"},
    ]
    key = new_user(corral, "ann", *statements)
    mine = opened_with(corral, browser, own_client(corral, key).create_console_link()["code"], "ann")
    page = mine.page
    expect(page.get_by_text("Your policies do not allow you to see:")).to_contain_text("the waiting line")
    expect(page.get_by_role("region", name="GPUs", exact=True)).to_contain_text("GPU 1")
    mine.open("tasks")
    expect(page.get_by_text("Your policies do not allow you to see:")).to_contain_text(
        "not authorized to perform: ecs:ListClusters"
    )
    mine.open("queues")
    mine.press("Create …")
    page.get_by_role("dialog").get_by_role("textbox", name="Name", exact=True).fill("of-ann")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("of-ann")
    mine.press("Delete")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("not authorized to perform: sqs:DeleteQueue")
    assert all(REFUSED in error for error in mine.errors), mine.errors
    corral.own("RemoveUser", user="ann")
    expect(page.locator("main h1")).to_have_text("Open the console with a new link")
    page.context.close()


def test_a_link_that_is_pasted_into_a_tab_of_the_console(console: Console) -> None:
    """Only the fragment of the address changes then, so the browser loads no page by itself."""
    page, corral = console.page, console.corral
    console.open("queues")
    for _ in range(2):
        code = corral.own("CreateConsoleLink")["code"]
        page.evaluate("code => { location.hash = code }", code)
        expect(page.locator("main h1")).to_have_text("Overview")
        assert code not in page.url
        other = console.new_tab("Overview")
        with console.refused():  # the page may connect again before it hears of the other tab
            other.get_by_role("button", name="Log out").click()
            for tab in (other, page):  # a session is that of the browser
                expect(tab.locator("main h1")).to_have_text("Open the console with a new link")
        other.close()
    page.evaluate("code => { location.hash = code }", corral.own("CreateConsoleLink")["code"])
    expect(page.locator("main h1")).to_have_text("Overview")


def test_wrong_addresses_and_values(console: Console) -> None:
    page = console.page
    with console.refused():  # a page that was left may still get its answers
        for path in (
            "%E0%A4%A",
            "tasks/default/%E0",
            "nothing/here",
            "tasks/none/x",
            "buckets/none",
            "stacks/none",
            "batch/job/none",
        ):
            page.evaluate("path => { location.hash = '#/' + path }", path)
            expect(page.locator("main h1")).to_be_visible()
            expect(page.get_by_role("link", name="Overview")).to_be_visible()
            expect(page.get_by_text("Loading …")).to_have_count(0)
        console.open("tasks")
        console.press("Run …")
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("textbox", name="Name", exact=True).fill("a name with spaces")
        dialog.get_by_label("Command", exact=True).first.fill("true")
        dialog.get_by_role("button", name="Run", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("contains invalid characters")
        dialog.get_by_role("textbox", name="Name", exact=True).fill("wide")
        dialog.get_by_role("spinbutton", name="GPUs").fill("99")
        dialog.get_by_role("button", name="Run", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("GPU")
        page.keyboard.press("Escape")


def test_draw_a_metric(console: Console) -> None:
    cloudwatch, page = console.corral.client("cloudwatch"), console.page
    cloudwatch.put_metric_data(Namespace="Training", MetricData=[{"MetricName": "loss", "Value": 0.5, "Unit": "None"}])
    cloudwatch.put_metric_alarm(
        AlarmName="high-loss", Namespace="Training", MetricName="loss", Period=60, EvaluationPeriods=1, Threshold=0.7,
        Statistic="Maximum", ComparisonOperator="GreaterThanThreshold",
    )  # fmt: skip
    cloudwatch.put_composite_alarm(AlarmName="any-loss", AlarmRule='ALARM("high-loss")')
    console.open("metrics")
    page.get_by_label("Namespace").select_option("Training")
    page.get_by_role("checkbox", name="Draw loss").check()
    expect(page.get_by_role("img", name="Chosen metrics. loss: 0.5 to 0.5, last 0.5")).to_be_visible()
    alarms = page.get_by_role("region", name="Alarms")
    expect(alarms.get_by_role("link", name="any-loss").first).to_be_visible()
    expect(page.get_by_role("region", name="Graph")).to_contain_text("Alarms on it: high-loss")
    expect(page.locator(".graph .threshold")).to_have_count(1)
    console.press("Clear")
    expect(page.get_by_role("checkbox", name="Draw loss")).not_to_be_checked()
    expect(page.get_by_text("Choose up to 6 metrics below.")).to_be_visible()


def test_the_keyboard_alone(console: Console) -> None:
    page = console.page
    console.open("tasks")
    page.get_by_role("link", name="Skip to the content").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator("main h1")).to_have_text("Tasks and runs")
    tab_to(page, "Run …")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_label("Command", exact=True).first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Enter")  # the button has the focus again
    page.keyboard.type("sleep 600")
    page.keyboard.press("Tab")
    page.keyboard.type("typed")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("typed")
    expect(page.locator("main")).to_be_focused()  # not the start of the document, from which all links would come first
    tab_to(page, "Stop")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main .head .state")).to_contain_text("STOPPED")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_everybody_can_use_the_pages(console: Console, scheme: Any, width: int) -> None:
    """No page has a serious finding of axe-core, and on a phone none is wider than the screen."""
    page = console.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    inner = ("groups/workers", "queues/letters", "buckets/data", "batch/q", "tasks/default/" + any_task(console.corral))
    for path in (*PATHS, *inner):
        page.evaluate("path => { location.hash = '#/' + path }", path)
        expect(page.locator(f"main .page[data-key='#/{path}'] h1")).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        assert not serious_findings(page), path
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than {width} pixels"


def serious_findings(page: Page) -> list[Any]:
    """Return what axe-core finds on the page, and some elements for each."""
    assert AXE.exists(), "axe-core is missing: `make tests/console/node_modules/.installed` installs it"
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE.read_text())
    run = "axe.run({resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
    found = page.evaluate(f"async () => (await {run}).violations")
    return [
        (each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found if each["impact"] in ("serious", "critical")
    ]


def tab_to(page: Page, text: str) -> None:
    """Press the tabulator key until the element with this text has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == text:
            return
    raise AssertionError(f"the keyboard does not reach {text}")


def any_task(corral: Corral) -> str:
    return str(corral.own("GetHistory", name="holder")["tasks"][0]["taskArn"]).rpartition("/")[2]


def png() -> bytes:
    """Return an image of 8 by 8 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([200, 30, 30] * 8) for _ in range(8))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
