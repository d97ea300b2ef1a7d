"""What Corral sends to Ray, and how it reads what Ray says. A small server answers as Ray does; bench/ray_lab.py has a real Ray."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from corral.model.allocation import Phase
from corral.model.lender_settings import RaySettings
from corral.server.lenders.lender import AllocationRequest, LenderFailed, LenderRefused
from corral.server.lenders.ray import Ray

PREFIX = "corral-x-"
REQUEST = AllocationRequest(f"{PREFIX}i", 2, 4, 1024, {"accelerator_type": "H100"}, "10.0.0.1:4567", "i.secret.pin")
SAID = {"corral": "allocation", "gpus": "0,1", "host": "node1", "digest": "d" * 64}


class Dashboard:
    """A server with answers that the test sets: (method, path without its query) → (status, answer)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str, str]] = []  # method, path, body, authorization
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.groups: list[dict[str, Any]] = []
        self.actors: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.is_partial = False
        dashboard = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                path, _, query = self.path.partition("?")
                dashboard.requests.append((self.command, self.path, body, self.headers.get("Authorization", "")))
                status, answer = dashboard.answer(self.command, path, body, parse_qs(query).get("filter_values", [""])[-1])
                text = json.dumps(answer).encode() if not isinstance(answer, str) else answer.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, method: str, path: str, body: str, state: str) -> tuple[int, Any]:
        if (method, path) in self.answers:
            return self.answers[method, path]
        if path.startswith("/api/v0/"):
            listed = self.groups if path.endswith("groups") else [each for each in self.actors if each["state"] == state]
            inner = {
                "total": len(listed) + self.is_partial, "num_after_truncation": len(listed), "num_filtered": len(listed),
                "partial_failure_warning": "", "result": listed,
            }  # fmt: skip
            return 200, {"result": True, "msg": "", "data": {"result": inner}}
        if method == "POST":
            job = json.loads(body)["submission_id"]
            self.jobs[job] = {"status": "RUNNING", "message": ""}
            return 200, {"submission_id": job}
        job = path.rpartition("/")[2]
        if job not in self.jobs:
            return 404, f"Job {job} does not exist"
        return 200, self.jobs.pop(job) if method == "DELETE" else self.jobs[job]

    def add(self, handle: str, group: str = "CREATED", actor: str | None = "ALIVE", **more: Any) -> None:
        """Add a placement group and its actor."""
        bundle = {"unit_resources": {"GPU": 2.0, "CPU": 4.0}}
        name, stats = f"{PREFIX}i.{handle}", {"scheduling_state": more.get("scheduling", "FINISHED")}
        self.groups.append({"name": name, "state": group, "bundles": [bundle], "stats": stats})
        if actor is not None:
            said = {"name": name, "state": actor, "repr_name": json.dumps(SAID)}
            self.actors.append(said | more)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    found = Dashboard()
    yield found
    found.close()


def lender(dashboard: Dashboard, **settings: Any) -> Ray:
    return Ray(RaySettings(kind="ray", dashboard=dashboard.url, **settings))


def found(ray: Ray) -> list[tuple[str, Phase, str]]:
    return [(each.handle, each.phase, each.reason) for each in ray.found(PREFIX)]


def test_a_request_has_no_secret_and_its_job_is_deleted(dashboard: Dashboard, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of the cluster\n")
    ray = lender(dashboard, token_file=str(tmp_path / "token"), resources={"lab": 1.0})
    handle = ray.launch(REQUEST)
    [(_, path, body, authorization)] = dashboard.requests
    assert (path, authorization) == ("/api/jobs/", "Bearer of the cluster")
    assert "i.secret" not in body and "secret.pin" not in body
    entrypoint = json.loads(body)["entrypoint"]
    for text in ('"GPU": 2', '"CPU": 4', '"memory": 1073741824', '"accelerator_type:H100": 0.001', '"lab": 1.0', '["i", "pin"]'):
        assert text in entrypoint
    assert found(ray) == [(handle, Phase.WAITING, "Ray starts the job that makes its placement group")]
    dashboard.add(handle)
    dashboard.jobs[f"corral-make-{handle}"]["status"] = "SUCCEEDED"
    [each] = ray.found(PREFIX)
    assert (each.phase, each.machine, each.digest) == (Phase.RUNNING, "node1", "d" * 64)
    assert dashboard.jobs == {}


@pytest.mark.parametrize(
    "group, actor, more, phase, reason",
    [
        ("PENDING", "PENDING_CREATION", {}, Phase.WAITING, "Ray waits for 2 GPUs"),
        ("PENDING", "PENDING_CREATION", {"scheduling": "INFEASIBLE"}, Phase.WAITING, "Ray waits for 2 GPUs, which no node has now"),
        ("CREATED", "PENDING_CREATION", {"repr_name": ""}, Phase.WAITING, "Ray has the resources, and starts the pilot"),
        ("CREATED", "ALIVE", {"repr_name": "junk"}, Phase.WAITING, "Ray has the resources, and starts the pilot"),
        ("CREATED", "ALIVE", {}, Phase.RUNNING, "Ray runs h on node1"),
        ("CREATED", "DEAD", {}, Phase.BROKEN, "the actor of h in Ray has ended, which does not prove that its tasks have"),
        ("RESCHEDULING", "DEAD", {}, Phase.BROKEN, "the actor of h in Ray has ended, which does not prove that its tasks have"),
        ("CREATED", None, {}, Phase.BROKEN, "the actor of h in Ray has ended, which does not prove that its tasks have"),
        ("REMOVED", "DEAD", {}, Phase.OVER, "the placement group of h was removed from Ray"),
    ],
)
def test_what_ray_says(dashboard: Dashboard, group: str, actor: str | None, more: Any, phase: Phase, reason: str) -> None:
    dashboard.add("h", group, actor, **more)
    dashboard.groups.append({"name": "train", "state": "CREATED", "bundles": [], "stats": None})  # of others
    assert found(lender(dashboard)) == [("h", phase, reason)]


def test_a_job_that_fails_is_reported_once(dashboard: Dashboard) -> None:
    ray = lender(dashboard)
    handle = ray.launch(REQUEST)
    dashboard.jobs[f"corral-make-{handle}"] = {
        "status": "FAILED",
        "message": "Traceback\nModuleNotFoundError: No module named 'ray'\n",
    }
    why = f"the job corral-make-{handle} in Ray has failed: ModuleNotFoundError: No module named 'ray'"
    assert found(ray) == [(handle, Phase.ENDED, why)]
    assert found(ray) == []


def test_allocations_are_ended_by_one_job_at_a_time(dashboard: Dashboard) -> None:
    ray = lender(dashboard)
    dashboard.add("a")
    dashboard.add("b", "PENDING", "PENDING_CREATION", repr_name="")
    ray.found(PREFIX)
    ray.terminate(["a", "b", "unknown"])
    [(job, _)] = dashboard.jobs.items()
    entrypoint = json.loads(dashboard.requests[-1][2])["entrypoint"]
    assert f'{{"ask": ["{PREFIX}i.a"], "drop": ["{PREFIX}i.b"]}}' in entrypoint
    ray.found(PREFIX)
    ray.terminate(["a", "b"])
    assert list(dashboard.jobs) == [job], "the job has not ended yet"
    dashboard.jobs[job]["status"] = "FAILED"
    ray.found(PREFIX)
    ray.terminate(["a", "b"])
    assert len(dashboard.jobs) == 2, "it is tried again"


def test_an_answer_that_may_be_incomplete_counts_as_none(dashboard: Dashboard) -> None:
    ray = lender(dashboard)
    dashboard.is_partial = True
    with pytest.raises(LenderFailed, match="lists only some of its placement_groups: there are more than 10000, so start"):
        ray.found(PREFIX)
    dashboard.answers["GET", "/api/v0/placement_groups"] = 200, {"result": False, "msg": "the state server is busy", "data": {}}
    with pytest.raises(LenderFailed, match="the state server is busy"):
        ray.found(PREFIX)
    dashboard.answers["GET", "/api/v0/placement_groups"] = 200, "<html>"
    with pytest.raises(LenderFailed, match="does not answer"):
        ray.found(PREFIX)
    dashboard.answers["POST", "/api/jobs/"] = 500, "Traceback\nRuntimeError: no head\n"
    with pytest.raises(LenderFailed, match="Ray answers 500: RuntimeError: no head"):
        ray.launch(REQUEST)
    dashboard.answers["POST", "/api/jobs/"] = 403, "Unauthorized"
    with pytest.raises(LenderRefused, match="Unauthorized"):
        ray.launch(REQUEST)
    dashboard.close()
    with pytest.raises(LenderFailed, match="does not answer"):
        ray.found(PREFIX)
