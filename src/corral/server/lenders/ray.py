"""Ray as a lender: an instance is a detached placement group, and an actor in it that starts the pilot (`ray_program.py`).

Corral talks to the dashboard of the cluster over HTTP: it submits jobs, and lists placement groups and actors. It does not import
Ray, so the versions of Ray and of Python need not match. Ray's lists prove nothing about processes: a node that Ray has given up
may still run everything. The proof is that the agent reports the ends of its tasks, or the operator says that the machine is off.
"""

from __future__ import annotations

import http.client
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from corral.core.clock import WallClock
from corral.model.allocation import Found, Phase
from corral.model.lender_settings import RaySettings
from corral.model.units import MIB
from corral.server.lenders.lender import AllocationRequest, LenderFailed, LenderRefused
from corral.server.lenders.pilot_script import held_pilot_script

ANSWER_S = 30.0
LISTED_MAX = 10_000  # the most that Ray lists
RAISE_LIMIT = "so start its head node with larger RAY_MAX_LIMIT_FROM_DATA_SOURCE and RAY_MAX_LIMIT_FROM_API_SERVER"
JOBS_MAX = 4  # jobs at the same time: each one has two processes on the head node
JOBS_WAIT_S, JOBS_POLL_S = 60.0, 0.5
NAMESPACE = "corral"
JOB_RUNS = ("PENDING", "RUNNING")
# Ray keeps actors that are dead, too many to list. An actor goes through these states in this order, so it is found in one of them.
LIVE = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE")
ERROR_MAX = 500  # characters
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
HANDLE_DIGITS = 9  # of milliseconds: a later handle is greater than an earlier one


class Ray:
    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._program = Path(__file__).with_name("ray_program.py").read_text()
        self._last_ms = 0
        self._makes: dict[str, tuple[str, str]] = {}  # id of a job that makes a group → the label and the handle of the group
        self._failed: dict[str, Found] = {}  # handle → an allocation that was not made
        self._ends: dict[str, tuple[str, ...]] = {}  # id of a job that ends groups → their names
        self._named: dict[str, tuple[str, bool]] = {}  # handle → the name of its group, and whether its actor lives

    def launch(self, request: AllocationRequest) -> str:
        self._wait_for_jobs()
        handle = self._new_handle()
        bundle: dict[str, float] = {"CPU": request.cpus, "memory": request.memory_mib * MIB} | self._settings.resources
        if request.gpus:
            bundle["GPU"] = request.gpus
        if model := request.options.get("accelerator_type", self._settings.accelerator_type):
            bundle[f"accelerator_type:{model}"] = 0.001
        instance, _, pin = request.token.split(".")
        wanted = {
            "name": f"{request.label}.{handle}", "bundle": bundle, "gpus": request.gpus,
            "script": held_pilot_script(self._settings, request, handle), "token": [instance, pin],
        }  # fmt: skip
        job = self._submit(f"make-{handle}", ["make", json.dumps(wanted)])
        self._makes[job] = (request.label, handle)
        return handle

    def found(self, label_prefix: str) -> list[Found]:
        self._follow_jobs()
        groups = self._list("placement_groups", {})
        actors = dict[str, dict[str, Any]]()
        for state in LIVE:
            actors |= {each["name"]: each for each in self._list("actors", {"ray_namespace": NAMESPACE, "state": state})}
        found = dict[str, Found]()
        named = dict[str, tuple[str, bool]]()
        for group in groups:
            name = group["name"]
            label, _, handle = name.rpartition(".")
            if label.startswith(label_prefix):
                actor = actors.get(name)
                named[handle] = (name, actor is not None and actor["state"] == "ALIVE")
                found[handle] = self._found(label, handle, group, actor)
        self._named = named
        for label, handle in self._makes.values():
            found.setdefault(handle, Found(label, handle, Phase.WAITING, "Ray starts the job that makes its placement group"))
        failed, self._failed = self._failed, {}
        for handle in failed.keys() & found.keys():  # Ray can lose the supervisor of a job that has done its work
            self._delete_job(f"corral-make-{handle}")
        return [*found.values(), *(each for handle, each in failed.items() if handle not in found)]

    def terminate(self, handles: Sequence[str]) -> None:
        being_ended = {name for names in self._ends.values() for name in names}
        named = [self._named[handle] for handle in handles if handle in self._named]
        names = {True: list[str](), False: list[str]()}
        for name, is_alive in named:
            if name not in being_ended:
                names[is_alive].append(name)
        if names[True] or names[False]:
            job = self._submit(f"end-{self._new_handle()}", ["end", json.dumps({"ask": names[True], "drop": names[False]})])
            self._ends[job] = (*names[True], *names[False])

    def phase_of_missing(self, handle: str, machine: str) -> Phase:
        """A head node without a store of its own forgets all groups when it restarts. Their nodes end them later."""
        return Phase.OVER

    def advice(self) -> list[str]:
        return []

    def _found(self, label: str, handle: str, group: Mapping[str, Any], actor: Mapping[str, Any] | None) -> Found:
        state, is_new = group["state"], any(handle == made for _, made in self._makes.values())
        if state == "REMOVED":
            return Found(label, handle, Phase.OVER, f"the placement group of {handle} was removed from Ray")
        if actor is None and not is_new:
            why = f"the actor of {handle} in Ray has ended, which does not prove that its tasks have"
            return Found(label, handle, Phase.BROKEN, why)
        if state != "CREATED":
            return Found(label, handle, Phase.WAITING, _why_waiting(group))
        said = _said(actor) if actor is not None else {}
        if not said:
            return Found(label, handle, Phase.WAITING, "Ray has the resources, and starts the pilot")
        return Found(
            label, handle, Phase.RUNNING, f"Ray runs {handle} on {said['host']}", machine=said["host"], digest=said["digest"]
        )

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _new_handle(self) -> str:
        self._last_ms = max(self._last_ms + 1, int(WallClock().now_s() * 1000))
        digits, rest = "", self._last_ms
        while rest or len(digits) < HANDLE_DIGITS:
            rest, digit = divmod(rest, len(DIGITS))
            digits = DIGITS[digit] + digits
        return digits

    def _submit(self, name: str, words: Sequence[str]) -> str:
        """Submit a job, and return its id. Everybody who may see the jobs of the cluster sees `words`."""
        command = shlex.join([self._settings.ray_python, "-c", self._program, *words])
        job = {"entrypoint": command, "submission_id": f"corral-{name}", "metadata": {"corral": words[0]}}
        self._request("POST", "/api/jobs/", job)
        return str(job["submission_id"])

    def _wait_for_jobs(self) -> None:
        until_s = time.monotonic() + JOBS_WAIT_S
        while len(self._makes) >= JOBS_MAX:
            if time.monotonic() > until_s:
                raise LenderFailed(f"{JOBS_MAX} jobs of Corral in Ray have not ended within {JOBS_WAIT_S:.0f} s")
            time.sleep(JOBS_POLL_S)
            self._follow_jobs()

    def _follow_jobs(self) -> None:
        """Find out which of the jobs have ended. The record of one that has succeeded is deleted from Ray."""
        for job in [*self._makes, *self._ends]:
            try:
                about = self._request("GET", f"/api/jobs/{quote(job)}")
            except LenderRefused:  # Ray does not know it any more
                about = {"status": "FAILED", "message": "Ray does not know the job any more"}
            if about["status"] in JOB_RUNS:
                continue
            self._ends.pop(job, None)
            made = self._makes.pop(job, None)
            if about["status"] == "SUCCEEDED":
                self._delete_job(job)
            elif made is not None:
                why = f"the job {job} in Ray has failed: {_last_line(about.get('message') or about['status'])}"
                self._failed[made[1]] = Found(*made, Phase.ENDED, why)

    def _delete_job(self, job: str) -> None:
        with suppress(LenderRefused):  # Ray does not know it any more
            self._request("DELETE", f"/api/jobs/{quote(job)}")

    # -- HTTP ----------------------------------------------------------------------------------------------------

    def _list(self, kind: str, equal: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return all entries of a list of Ray. An incomplete list would look as if allocations had ended."""
        words = [("limit", str(LISTED_MAX)), ("detail", "1")]
        for key, value in equal.items():
            words += [("filter_keys", key), ("filter_predicates", "="), ("filter_values", value)]
        answer = self._request("GET", f"/api/v0/{kind}?{urlencode(words)}")
        if not answer.get("result"):
            raise LenderFailed(f"Ray does not list its {kind}: {str(answer.get('msg'))[:ERROR_MAX]}")
        data = answer["data"]["result"]
        is_cut = data["num_after_truncation"] < data["total"] or len(data["result"]) < data["num_filtered"]
        if data["partial_failure_warning"] or is_cut:
            why = data["partial_failure_warning"][:ERROR_MAX] or f"there are more than {LISTED_MAX}, {RAISE_LIMIT}"
            raise LenderFailed(f"Ray lists only some of its {kind}: {why}")
        return list(data["result"])

    def _request(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer of the dashboard. Raise LenderRefused if it says that the request is at fault."""
        address = urlsplit(self._settings.dashboard)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=ANSWER_S)
        headers = {"Content-Type": "application/json"}
        try:
            if self._settings.token_file:
                headers["Authorization"] = f"Bearer {Path(self._settings.token_file).read_text().strip()}"
            text = None if body is None else json.dumps(body)
            connection.request(method, address.path.rstrip("/") + path, text, headers)
            response = connection.getresponse()
            answer = response.read()
            if 400 <= response.status < 500:
                raise LenderRefused(_last_line(answer.decode(errors="replace")) or f"Ray answers {response.status}")
            if response.status != 200:
                raise LenderFailed(f"Ray answers {response.status}: {_last_line(answer.decode(errors='replace'))}")
            return json.loads(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LenderFailed(
                f"the dashboard {self._settings.dashboard} does not answer: {error or type(error).__name__}"
            ) from None
        finally:
            connection.close()


def _said(actor: Mapping[str, Any]) -> dict[str, str]:
    """Return what the actor says about itself. Empty: it has not started."""
    try:
        said = json.loads(actor["repr_name"])
        return {"host": str(said["host"])[:100], "digest": str(said["digest"])} if actor["state"] == "ALIVE" else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _why_waiting(group: Mapping[str, Any]) -> str:
    needs = group["bundles"][0]["unit_resources"] if group["bundles"] else {}
    gpus, cpus = int(needs.get("GPU", 0)), int(needs.get("CPU", 0))
    name, count = ("GPU", gpus) if gpus else ("CPU", cpus)
    more = ", which no node has now" if (group.get("stats") or {}).get("scheduling_state") == "INFEASIBLE" else ""
    return f"Ray waits for {count} {name}{'' if count == 1 else 's'}{more}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:ERROR_MAX] if lines else ""
