"""Code that runs on a host: the agent, the engines that run processes and containers, the GPUs, and log shipping.

    agent       carries out the core's orders and reports to it; may die at any time
    spawner     the parent of every process run; small, outlives the agent and the server, writes a journal

`corral.node.node_folder` lists the files under `<data>/node`.
"""
