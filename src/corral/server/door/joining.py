"""Answers hosts that ask to join or to renew their certificates: the connections of the door of the kind `join`.

Both ends send lines of JSON. First the server sends its authority, its protocol and its version. The host checks the authority
with the pin of its token. Then it sends a `JoinRequest` and gets a `JoinAnswer`. A host that has presented a certificate, also an
expired one, renews it. A host without a certificate needs a token.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from corral.core.clock import Clock
from corral.model.agent_protocol import PROTOCOL, PROTOCOLS
from corral.model.joined_host import WHEELS, JoinAnswer, JoinOffer, JoinRequest
from corral.node.host import machine_id
from corral.server.door.authority import Authority, BadRequest, SigningRequest, read_request
from corral.server.door.preamble import Preamble
from corral.server.lanes import Lane
from corral.server.lenders.pilot_files import PilotFiles
from corral.services.corral import joining, lending
from corral.services.corral.joining import JoinLater, JoinRefused, Redemption
from corral.store import Store
from corral.version import full_version

LINE_MAX_BYTES = 16 * 1024
ANSWER_S = 10.0  # how long a host may take for its request
CLOCKS_DIFFER_MAX_S = 300.0  # requests of tasks on a host are signed with its clock; AWS accepts the same difference
FAILURES_MAX = 10  # failed requests of an address; one is forgiven every FORGIVE_S
FORGIVE_S = 2.0
ADDRESSES_MAX = 10_000
RENEW_AFTER = 1 / 3  # a host renews its certificate after this part of its lifetime

log = logging.getLogger("corral")


class Joiner:
    def __init__(
        self, authority: Authority, state: Lane[Store], clock: Clock, port: int, account: str, certificate_s: float,
        pilot_files: PilotFiles,
    ) -> None:  # fmt: skip
        """`port` is the port of the API. `certificate_s` is the lifetime of the certificates of hosts."""
        self._pilot_files = pilot_files
        self._authority = authority
        self._state = state
        self._clock = clock
        self._port = port
        self._account = account
        self._certificate_s = certificate_s
        self._failures = _Failures(clock.now_s)
        self._offer = JoinOffer(authority.pem, PROTOCOL, full_version(), port, machine_id())

    async def serve(self, preamble: Preamble, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LINE_MAX_BYTES)
        try:
            writer.write(msgspec.json.encode(self._offer) + b"\n")
            async with asyncio.timeout(ANSWER_S):
                line = await reader.readline()
            if line:
                answer, content = await self._answer(preamble, line)
                writer.write(msgspec.json.encode(answer) + b"\n" + content)
                await writer.drain()
        except (OSError, TimeoutError, ValueError):  # ValueError: the line is too long
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, preamble: Preamble, line: bytes) -> tuple[JoinAnswer, bytes]:
        """Return the answer to a request, and the content that follows it."""
        try:
            if self._failures.are_too_many(preamble.address):
                raise JoinRefused("Too many requests of this address have failed. Wait a minute, then try again.")
            request = msgspec.json.decode(line, type=JoinRequest)
            if request.fetch or request.failure:
                return await self._serve_pilot(request)
            return await (self._renew(preamble, request) if preamble.host else self._join(preamble, request)), b""
        except JoinLater as refusal:
            return JoinAnswer(error=str(refusal)), b""
        except (JoinRefused, BadRequest) as refusal:
            self._failures.add(preamble.address)
            log.warning("a host at %s was refused: %s", preamble.address, refusal)
            return JoinAnswer(error=str(refusal)), b""
        except msgspec.DecodeError:
            self._failures.add(preamble.address)
            return JoinAnswer(error="The server does not understand the request."), b""

    async def _serve_pilot(self, request: JoinRequest) -> tuple[JoinAnswer, bytes]:
        """Send wheels to the pilot of an allocation, or store why it cannot join."""
        token_id, _, secret = request.token.partition(".")
        await self._state.submit(
            partial(lending.pilot_asks, token_id=token_id, secret=secret, handle=request.allocation, failure=request.failure)
        )
        if request.failure:
            return JoinAnswer(), b""
        if request.fetch == WHEELS:
            wheels = await asyncio.to_thread(self._pilot_files.offer)
            return JoinAnswer(wheels=wheels, requires=self._pilot_files.requires), b""
        content = await asyncio.to_thread(self._pilot_files.read, request.fetch)
        if content is None:
            return JoinAnswer(error="The server does not have this wheel."), b""
        return JoinAnswer(size=len(content)), content

    async def _join(self, preamble: Preamble, request: JoinRequest) -> JoinAnswer:
        if request.protocol not in PROTOCOLS:
            raise JoinRefused(
                f"The versions of Corral differ: this machine has {request.version[:60]}, and the server has {full_version()}. "
                "Install the version of the server on this machine."
            )
        ahead_s = request.time_s - self._clock.wall_s()
        if abs(ahead_s) > CLOCKS_DIFFER_MAX_S:
            ahead = "ahead of" if ahead_s > 0 else "behind"
            raise JoinRefused(
                f"The clock of this machine is {abs(ahead_s):.0f} s {ahead} the clock of the server. "
                "Set both, for example with `timedatectl set-ntp true`."
            )
        token_id, _, secret = request.token.partition(".")
        signing = await asyncio.to_thread(read_request, request.signing_request)
        redemption = Redemption(
            token_id,
            secret,
            request.name,
            signing.key_digest,
            request.version,
            preamble.address,
            request.machine,
            request.allocation,
        )
        if why := await self._state.submit(partial(joining.note_machine_with_key, redemption=redemption)):
            raise JoinRefused(why)
        host = await self._state.submit(lambda tx: joining.redeem(tx, redemption))
        log.info("the host %s joins from %s, with the token %s", host.name, preamble.address, token_id)
        return await self._certify(host.id, signing, "", request.machine)

    async def _renew(self, preamble: Preamble, request: JoinRequest) -> JoinAnswer:
        signing = await asyncio.to_thread(read_request, request.signing_request)
        note = partial(joining.note_machine, host_id=preamble.host, machine=request.machine, address=preamble.address)
        if why := await self._state.submit(note):
            raise JoinRefused(why)
        return await self._certify(preamble.host, signing, preamble.serial, request.machine)

    async def _certify(self, host_id: str, signing: SigningRequest, earlier_serial: str, machine: dict[str, str]) -> JoinAnswer:
        now_s = self._clock.wall_s()
        issue: Callable[[], tuple[str, str]] = partial(self._authority.issue_host, signing, host_id, now_s, self._certificate_s)
        pem, serial = await asyncio.to_thread(issue)
        host = await self._state.submit(
            partial(
                joining.certify,
                host_id=host_id,
                serial=serial,
                key_digest=signing.key_digest,
                earlier_serial=earlier_serial,
                machine=machine,
            )
        )
        return JoinAnswer(
            certificate=pem, host_id=host.id, name=host.name, port=self._port, account=self._account, cluster=host.cluster,
            rack=host.rack, expires_at_s=now_s + self._certificate_s, renew_at_s=now_s + self._certificate_s * RENEW_AFTER,
        )  # fmt: skip


class _Failures:
    """Counts the failed requests of each address. The count falls by one every FORGIVE_S."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until_s: OrderedDict[str, float] = OrderedDict()  # address → when all its failures are forgiven

    def add(self, address: str) -> None:
        self._until_s[address] = max(self._until_s.pop(address, 0.0), self._now_s()) + FORGIVE_S
        if len(self._until_s) > ADDRESSES_MAX:
            self._until_s.popitem(last=False)

    def are_too_many(self, address: str) -> bool:
        return self._until_s.get(address, 0.0) - self._now_s() > FAILURES_MAX * FORGIVE_S
