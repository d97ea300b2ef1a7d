"""Runs `torchrun` on a node of an AWS Batch multi-node job: `python torchrun_nodes.py TRAIN.py ARGUMENT...`.

Every node of the job runs this same command. The main node is the rendezvous, at its address. Each node starts one process per GPU,
and one if it has none.
"""

import os
import sys

PORT = os.environ.get("MASTER_PORT", "29500")


def main() -> None:
    environment = os.environ
    own = environment["CORRAL_NODE_ADDRESS"]
    master = environment.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", own)
    gpus = [gpu for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    # torchrun numbers the nodes from the main node on.
    count = int(environment["AWS_BATCH_JOB_NUM_NODES"])
    rank = (int(environment["AWS_BATCH_JOB_NODE_INDEX"]) - int(environment["AWS_BATCH_JOB_MAIN_NODE_INDEX"])) % count
    options = [
        f"--nnodes={count}", f"--node-rank={rank}", f"--nproc-per-node={max(1, len(gpus))}", f"--master-addr={master}",
        f"--master-port={PORT}", f"--local-addr={own}",
    ]  # fmt: skip
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *options, *sys.argv[1:]])


if __name__ == "__main__":
    main()
