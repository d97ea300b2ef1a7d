"""Code that runs on a host: the agent, the engines that run processes and containers, the GPUs, and log shipping.

    agent       carries out the orders of the core and reports to it; the runs continue if it is killed
    spawner     the parent process of all runs that are processes; a small program that outlives the agent and the server

`corral.node.node_folder` lists the files under `<data>/node`.
"""
