"""Code that runs on a host: the agent, the engines that run processes and containers, the GPUs, and log shipping.

The core is the part of the server that stores all state and decides what runs where.

    agent       carries out the orders of the core and reports to it; the runs continue if it is killed
    spawner     the parent process of all runs that are processes; a small program that outlives the agent and the server

`corral.node.node_folder` lists the files under `<data>/node`.
"""
