"""Code that runs on a host: the agent, the engines that run processes and containers, the GPUs, and log shipping.

A run is one container of a task on a host; it is a Docker container or a process. The core is the part of the server that stores
all state and decides what runs where.

    agent       carries out the core's orders and reports to it; may die at any time
    spawner     the parent of every process run; small, outlives the agent and the server, writes a journal

`corral.node.node_folder` lists the files under `<data>/node`.
"""
