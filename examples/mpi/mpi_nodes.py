"""Runs an MPI program on all nodes of an AWS Batch multi-node job, without ssh: `python mpi_nodes.py PROGRAM ARGUMENT...`.

Every node of the job runs this same command.

- The main node listens on a port. When all other nodes have connected, it runs `mpirun` with one rank per GPU of each node (one
  rank on a node without GPUs), and exits with the status of `mpirun`.
- Every other node connects to the main node, and runs the commands that it receives. When the main node closes the connection, the
  other node ends these commands and exits.
- `mpirun` starts a daemon on each node. It would use ssh for this. Here it runs this file as its "rsh agent", with the name of a
  node and a command. The agent passes the command to the node through the main node, and exits with the status of the command.

All messages have a token, the variable MPI_TOKEN of the job, so that no other program can run commands. Choose a new token for each
job. The variables AWS_BATCH_JOB_* are set by Batch.
"""

import contextlib
import hmac
import ipaddress
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PORT = int(os.environ.get("MPI_PORT", "7070"))
NODES_MAX_S = float(os.environ.get("MPI_NODES_MAX_S", "300"))  # how long the main node waits for the others
MESSAGE_MAX_BYTES = 1024 * 1024
AGENT = "--agent"


class Connection:
    """A connection that carries JSON documents, one per line."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.file = sock.makefile("rb")
        self.lock = threading.Lock()

    def send(self, **message: object) -> None:
        with self.lock:
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict | None:
        """The next message, or None at the end of the connection."""
        line = self.file.readline(MESSAGE_MAX_BYTES)
        return json.loads(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        self.socket.close()
        self.file.close()


def main() -> int:
    if sys.argv[1:2] == [AGENT]:
        return ask_main_node(sys.argv[2], sys.argv[3:])
    if not os.environ.get("MPI_TOKEN"):
        sys.exit("MPI_TOKEN is not set: set it to a random text in the environment of the job.")
    if os.environ["AWS_BATCH_JOB_NODE_INDEX"] == os.environ["AWS_BATCH_JOB_MAIN_NODE_INDEX"]:
        return run_main_node(sys.argv[1:])
    return run_other_node()


def own_address() -> str:
    """The address of this node: a loopback address, or that of its host. A container with a network of its own has none."""
    return os.environ.get("CORRAL_NODE_ADDRESS", "")


def slots() -> int:
    """The number of ranks on this node: one per GPU, and at least one."""
    return max(1, len([gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]))


# The main node


class Nodes:
    """The other nodes, on the main node."""

    def __init__(self) -> None:
        self.connections: dict[str, Connection] = {}
        self.slots: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        self.agents: dict[int, tuple[str, Connection]] = {}  # number of a command → its node, and the agent that waits for its end
        self.numbers = itertools.count()
        self.lost = ""  # a node that has disconnected
        self.changed = threading.Condition()

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection = Connection(listener.accept()[0])
            threading.Thread(target=self.hear, args=(connection,), daemon=True).start()

    def hear(self, connection: Connection) -> None:
        """Read the first message of a connection: from a node, or from an agent that has a command for a node."""
        hello = connection.receive() or {}
        node = hello.get("node", "")
        if not hmac.compare_digest(str(hello.get("token")).encode(), os.environ["MPI_TOKEN"].encode()):
            connection.close()
        elif "slots" in hello:
            self.follow(connection, node, hello["slots"])
        elif node in self.connections:
            with self.changed:
                number = next(self.numbers)
                self.agents[number] = node, connection
            self.connections[node].send(number=number, command=hello["command"])
        else:
            connection.send(status=1)

    def follow(self, connection: Connection, node: str, slots: int) -> None:
        """Register a node, and pass the ends of its commands to their agents."""
        with self.changed:
            self.connections[node], self.slots[node] = connection, slots
            self.addresses[node] = connection.socket.getpeername()[0]
            self.changed.notify_all()
        while (message := connection.receive()) is not None:
            self.agents.pop(message["number"])[1].send(status=message["status"])
        sys.stderr.write(f"{node} has disconnected\n")
        with self.changed:
            self.lost = node
            self.changed.notify_all()
        for of, agent in list(self.agents.values()):
            if of == node:
                agent.send(status=1)  # so mpirun ends the program on all nodes

    def wait(self, count: int) -> None:
        """Wait until all other nodes have connected."""
        with self.changed:
            self.changed.wait_for(lambda: self.lost or len(self.connections) == count, NODES_MAX_S)
        if self.lost or len(self.connections) != count:
            sys.exit(self.lost or f"{len(self.connections)} of {count} other nodes have connected within {NODES_MAX_S:.0f} s")


def run_main_node(program: list[str]) -> int:
    nodes, others = Nodes(), int(os.environ["AWS_BATCH_JOB_NUM_NODES"]) - 1
    listener = socket.create_server((own_address(), PORT))
    threading.Thread(target=nodes.serve, args=(listener,), daemon=True).start()
    nodes.wait(others)
    with tempfile.NamedTemporaryFile("w", prefix="hosts-") as hosts:
        lines = [f"localhost slots={slots()}", *(f"{node} slots={nodes.slots[node]}" for node in sorted(nodes.slots))]
        hosts.write("\n".join(lines) + "\n")
        hosts.flush()
        agent = shlex.join([sys.executable, os.path.abspath(__file__), AGENT])
        options = ["--hostfile", hosts.name, "--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1"]
        # The daemons stay children of this file's process on each node, so that they end with it.
        options += ["--leave-session-attached", "-x", "PYTHONUNBUFFERED"]
        if own_address() and not own_address().startswith("127."):
            # The nodes run on several hosts: use the network by which they know each other, and no other networks of the hosts.
            network = common_network([own_address(), *nodes.addresses.values()])
            options += ["--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network]
        elif own_address():
            # All nodes are processes of one machine. Open MPI names its shared memory after the machine, so two nodes would use the
            # same memory: ranks send over TCP instead.
            options += ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo"]
        if os.getuid() == 0:
            options.append("--allow-run-as-root")
        sys.stderr.write(f"running on {', '.join(lines)}\n")
        sys.stderr.flush()
        return subprocess.run(["mpirun", *options, *program], check=False).returncode


def common_network(addresses: list[str]) -> str:
    """The smallest network with all addresses, such as 10.0.0.0/29. It is not /32, which Open MPI 4 takes for all networks."""
    numbers = [int(ipaddress.IPv4Address(address)) for address in addresses]
    length = min(31, *(32 - (numbers[0] ^ number).bit_length() for number in numbers))
    return str(ipaddress.IPv4Network((numbers[0], length), strict=False))


# The other nodes


def connect(address: str, until_s: float) -> Connection:
    """Connect to the main node, and try again until it listens."""
    while True:
        try:
            return Connection(socket.create_connection((address, PORT), 10, (own_address(), 0) if own_address() else None))
        except OSError as error:
            if time.monotonic() > until_s:
                sys.exit(f"the main node {address} cannot be reached: {error}")
            time.sleep(0.05)


def run_other_node() -> int:
    until_s = time.monotonic() + NODES_MAX_S
    connection = connect(os.environ["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"], until_s)
    connection.socket.settimeout(None)
    node = f"node{os.environ['AWS_BATCH_JOB_NODE_INDEX']}"
    connection.send(token=os.environ["MPI_TOKEN"], node=node, slots=slots())
    running: list[subprocess.Popen] = []
    while (order := connection.receive()) is not None:
        process = subprocess.Popen(["/bin/sh", "-c", order["command"]], start_new_session=True, stdin=subprocess.DEVNULL)
        running.append(process)
        threading.Thread(target=report, args=(connection, order["number"], process), daemon=True).start()
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return 0


def report(connection: Connection, number: int, process: subprocess.Popen) -> None:
    status = process.wait()
    with contextlib.suppress(OSError):  # the main node may have ended
        connection.send(number=number, status=status)


# The agent that mpirun runs on the main node


def ask_main_node(node: str, command: list[str]) -> int:
    connection = connect(own_address() or "127.0.0.1", time.monotonic() + 10)
    connection.socket.settimeout(None)
    connection.send(token=os.environ["MPI_TOKEN"], node=node, command=" ".join(command))
    answer = connection.receive()
    return 1 if answer is None or answer["status"] != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
