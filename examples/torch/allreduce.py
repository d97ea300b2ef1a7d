"""A program for `torchrun`: each process adds its rank to a sum over all processes, and prints what it has."""

import os
import socket

import torch
import torch.distributed as dist

backend = "nccl" if torch.cuda.is_available() else "gloo"
dist.init_process_group(backend)
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
total = torch.tensor([float(dist.get_rank())], device=device)
dist.all_reduce(total)
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}: the sum of all ranks is {total.item():.0f}",
    flush=True,
)
dist.destroy_process_group()
