"""Distances between the GPUs of one machine, as numbers that can be added. A smaller number means a faster connection."""

from __future__ import annotations

NVLINKS = 1  # several NVLinks between the two GPUs
NVLINK = 2  # one NVLink, or an NVSwitch that connects all GPUs of the machine
SAME_BOARD = 3
SAME_SWITCH = 4  # connected through one PCIe switch
SWITCHES = 5  # connected through several PCIe switches
HOST_BRIDGE = 6
SAME_SOCKET = 7
FAR = 8  # on different CPU sockets

# NVML's level of the PCIe path between two devices → distance.
PCI_LEVELS = {0: SAME_BOARD, 10: SAME_SWITCH, 20: SWITCHES, 30: HOST_BRIDGE, 40: SAME_SOCKET, 50: FAR}

NVSWITCH_MODELS = {"B200", "H200", "H100", "A100", "A100-80GB"}
CUBE_MESH_MODELS = {"V100", "V100-32GB"}
TWO_ON_A_BOARD = {"M60", "K80"}

# The number of NVLinks between eight V100, as in p3.16xlarge: two fully connected groups of four, and one or two links from each
# GPU to its counterpart in the other group.
_CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


def simulated(model: str, count: int) -> list[list[int]]:
    """Return the distances between the GPUs of a typical machine with `count` GPUs of one model."""
    return [[0 if at == other else _distance(model, count, at, other) for other in range(count)] for at in range(count)]


def _distance(model: str, count: int, at: int, other: int) -> int:
    if model in NVSWITCH_MODELS:
        return NVLINK
    if model in CUBE_MESH_MODELS:
        links = _CUBE_MESH[at % 8][other % 8] if at // 8 == other // 8 else 0
        return FAR if not links else NVLINK if links == 1 else NVLINKS
    if at // 2 == other // 2:
        return SAME_BOARD if model in TWO_ON_A_BOARD else SAME_SWITCH
    on_a_socket = -(-count // 4) * 2  # half of the GPUs, rounded up to an even number, so that no pair is split
    return SAME_SOCKET if at // on_a_socket == other // on_a_socket else FAR
