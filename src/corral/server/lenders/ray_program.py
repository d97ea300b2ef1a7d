"""Makes and ends the allocations of Corral in a Ray cluster.

Corral sends the text of this file to Ray as the command of a job. The cluster's own Python runs it, so it imports nothing of
Corral. It is the only file that imports Ray, inside its functions. An allocation is a detached placement group, and a detached
actor of the same name that has all its resources. The actor starts the pilot of Corral, and holds it by a pipe: when the actor
ends, however it ends, the pilot ends all tasks, because Ray gives the GPUs of a removed group to others within a second.

    python -c PROGRAM make '{"name": ..., "bundle": {...}, "gpus": 2, "script": ..., "token": ["INSTANCE", "PIN"]}'
    python -c PROGRAM end '{"ask": [NAME...], "drop": [NAME...]}'

The actor makes the secret of the pilot by itself. Ray shows everybody what a job or an actor is given, and what it says, so Corral
learns only the digest of the secret, from the name that the actor has in Ray's list of actors.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

NAMESPACE = "corral"
STARTED = "corral pilot starts: "  # the beginning of the first line of the script (`pilot_script.py`); then its pid
ENDS_S = 5.0  # after this time, the pilot is told to exit without reaching the server
ASK_S = 15.0
# The pilot keeps its standard input, and is no child of the actor, because Ray ends the children of an actor with it.
DETACH = 'exec 3<&0; setsid sh -c "$1" <&3 3<&- &'
NOT_FOR_THE_PILOT = ("RAY_", "PYTHON", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")


class HeldPilot:
    """The actor. `repr` of it is what Corral reads: a JSON object."""

    def __init__(self, script: str, token: list[str]) -> None:
        import ray

        secret = secrets.token_hex(16)
        gpus = ",".join(str(each) for each in ray.get_gpu_ids())
        environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_FOR_THE_PILOT)}
        environment["CUDA_VISIBLE_DEVICES"] = gpus
        reading, self._writing = os.pipe()
        said, saying = os.pipe()
        subprocess.run(["sh", "-c", DETACH, "sh", script], stdin=reading, stdout=saying, env=environment, check=True)
        os.close(reading)
        os.close(saying)
        os.write(self._writing, f"{token[0]}.{secret}.{token[1]}\n".encode())
        digest = hashlib.sha256(secret.encode()).hexdigest()
        self._text = json.dumps({"corral": "allocation", "gpus": gpus, "host": os.uname().nodename, "digest": digest})
        self._ended = threading.Event()
        self._pid = 0
        self._is_asked = False
        threading.Thread(target=self._listen, args=(said,), daemon=True).start()

    def __repr__(self) -> str:
        return self._text

    def _listen(self, said: int) -> None:
        """Wait for the end of the pilot's script. Its first line has its pid, and its last line says what was wrong."""
        with open(said, errors="replace") as lines:
            for line in lines:
                if line.startswith(STARTED):
                    self._pid = json.loads(line.removeprefix(STARTED))
                else:
                    print(line, end="", flush=True)
        self._ended.set()
        self._release()
        if not self._is_asked:
            os._exit(1)  # the pilot has ended by itself: the allocation is of no use any more

    def _release(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def end(self) -> bool:
        """End the pilot and all tasks. Return whether none is left."""
        self._is_asked = True
        self._release()
        if not self._ended.wait(ENDS_S) and self._pid:
            os.killpg(self._pid, signal.SIGTERM)
        return self._ended.wait(ENDS_S)


def make(name: str, bundle: dict[str, float], gpus: int, script: str, token: list[str]) -> None:
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([bundle], name=name, lifetime="detached")
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    options = {"num_gpus": gpus, "num_cpus": bundle["CPU"], "max_restarts": 0, "max_concurrency": 2}
    ray.remote(HeldPilot).options(name=name, namespace=NAMESPACE, lifetime="detached", scheduling_strategy=place, **options).remote(
        script, token
    )
    print("made", name, flush=True)


def end(ask: list[str], drop: list[str]) -> None:
    """End allocations, those of `drop` without asking their actors. The groups are removed last: then Ray gives away the GPUs."""
    import ray
    from ray.util.placement_group import get_placement_group, remove_placement_group

    actors = {name: actor for name in [*ask, *drop] if (actor := found(ray.get_actor, name, NAMESPACE)) is not None}
    asked = {actors[name].end.remote(): name for name in ask if name in actors}
    late = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_S)[1] if asked else []
    print("late:", *(asked[each] for each in late), flush=True)
    for name in [*ask, *drop]:
        if name in actors:
            ray.kill(actors[name])
        group = found(get_placement_group, name)
        if group is not None:
            remove_placement_group(group)


def found(get: Callable[..., Any], *name: str) -> Any:
    try:
        return get(*name)
    except ValueError:
        return None


def main() -> None:
    import ray

    ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level="warning")
    actions: dict[str, Callable[..., None]] = {"make": make, "end": end}
    actions[sys.argv[1]](**json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
