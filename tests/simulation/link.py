"""A connection between an agent and the core: two queues that are late, stand still, and break."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from simulation.agenda import Waiting

if TYPE_CHECKING:
    from simulation.host import Agent
    from simulation.world import World

Message = dict[str, Any]


class Way:
    """One direction: in order, and when it breaks only some of what was sent still arrives."""

    def __init__(self, world: World, arrive: Callable[[Message], None]) -> None:
        self._world = world
        self._arrive = arrive
        self._last = 0.0
        self._sent = 0
        self._arrived = 0
        self._keep: int | None = None  # how many of all messages arrive; None: every one
        self.stalled_until = 0.0

    def send(self, message: Message, not_before: float = 0.0) -> float:
        """When it will arrive, if nothing breaks."""
        if self._keep is not None:
            return self._last
        world = self._world
        late_s = world.rng.expovariate(1 / world.plan.latency_s)
        when = max(self._last, self.stalled_until, not_before, world.agenda.now + late_s)
        self._last = when
        self._sent += 1
        world.agenda.at(when, partial(self._deliver, self._sent, message))
        return when

    def break_off(self) -> float:
        """Nothing more can be sent; when the last of it will have arrived."""
        if self._keep is None:
            self._keep = self._world.rng.randint(self._arrived, self._sent)
        return self._last

    def _deliver(self, number: int, message: Message) -> None:
        if self._keep is None or number <= self._keep:
            self._arrived = number
            self._arrive(message)


class Connection:
    """Both ways, and the core's end of it: what has arrived and was not read yet."""

    def __init__(self, world: World, agent: Agent) -> None:
        self.world = world
        self.host_id = agent.host.id
        self.up = Way(world, self._arrived)
        self.down = Way(world, partial(agent.heard, self))
        self.broken = False
        self._agent = agent
        self._buffer: deque[Message | None] = deque()
        self._reading: Waiting | None = None

    def read(self) -> Waiting:
        """The next message; None at the end."""
        reading = Waiting()
        if self._buffer:
            reading.settle(self._buffer.popleft())
        else:
            self._reading = reading
        return reading

    def break_off(self) -> None:
        """Each end finds out in its own time, after what still arrives has arrived."""
        if self.broken:
            return
        self.broken = True
        pause_s = self.world.plan.latency_s * self.world.rng.random()
        self.world.agenda.at(self.up.break_off() + pause_s, partial(self._arrived, None))
        self.world.agenda.at(self.down.break_off() + pause_s, partial(self._agent.lost, self))

    def _arrived(self, message: Message | None) -> None:
        if self._reading is not None:
            reading, self._reading = self._reading, None
            reading.settle(message)
        else:
            self._buffer.append(message)
