"""An MPI program without dependencies: `mpirun -np 4 python allreduce.py`.

Each rank uses one GPU of its node, adds its rank to a sum over all ranks (MPI_Allreduce), and prints what it has. Rank 0 also
gathers the GPUs of all ranks, and fails if two ranks have the same GPU. A real program would use mpi4py, PyTorch or NCCL. This one
calls Open MPI's library directly, so that it runs with every Python.
"""

import ctypes
import os
import sys

GPU_NAME_BYTES = 64


class Mpi:
    """The few functions of Open MPI that this program needs."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
        self.world = self._object("ompi_mpi_comm_world")
        self._call("MPI_Init", None, None)

    def rank(self) -> int:
        return self._number("MPI_Comm_rank")

    def size(self) -> int:
        return self._number("MPI_Comm_size")

    def sum(self, value: int) -> int:
        """The sum of the values of all ranks."""
        mine, total = ctypes.c_int(value), ctypes.c_int()
        number, plus = self._object("ompi_mpi_int"), self._object("ompi_mpi_op_sum")
        self._call("MPI_Allreduce", ctypes.byref(mine), ctypes.byref(total), 1, number, plus, self.world)
        return total.value

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in all ranks."""
        size = self.size()
        mine = ctypes.create_string_buffer(text.encode()[: GPU_NAME_BYTES - 1], GPU_NAME_BYTES)
        every = (ctypes.c_char * (GPU_NAME_BYTES * size))()
        byte = self._object("ompi_mpi_char")
        self._call("MPI_Allgather", mine, GPU_NAME_BYTES, byte, every, GPU_NAME_BYTES, byte, self.world)
        parts = (every.raw[GPU_NAME_BYTES * at : GPU_NAME_BYTES * (at + 1)] for at in range(size))
        return [part.rstrip(b"\0").decode() for part in parts]

    def finalize(self) -> None:
        self._call("MPI_Finalize")

    def _object(self, name: str) -> ctypes.c_void_p:
        """The address of a predefined object, such as MPI_COMM_WORLD."""
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, name)))

    def _number(self, function: str) -> int:
        value = ctypes.c_int()
        self._call(function, self.world, ctypes.byref(value))
        return value.value

    def _call(self, function: str, *arguments: object) -> None:
        if getattr(self.library, function)(*arguments) != 0:
            sys.exit(f"{function} failed")


def my_gpu() -> str:
    """The GPU of this rank: the GPUs of the node, one for each of its ranks."""
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    at = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    if at >= len(gpus):
        sys.exit(f"rank {at} of this node has no GPU: the node has {len(gpus)}. Start one rank per GPU.")
    return gpus[at]


def main() -> None:
    gpu = my_gpu()
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before CUDA is initialized
    mpi = Mpi()
    rank, size = mpi.rank(), mpi.size()
    total, gpus = mpi.sum(rank), mpi.gather(gpu)
    node = os.environ.get("AWS_BATCH_JOB_NODE_INDEX", "0")
    sys.stdout.write(f"rank {rank} of {size} on node {node} has {gpu}; the sum of all ranks is {total}\n")
    sys.stdout.flush()
    if rank == 0 and len(set(gpus)) != size:
        sys.exit(f"two ranks have the same GPU: {gpus}")
    mpi.finalize()


if __name__ == "__main__":
    main()
