"""What runs on a host: the agent, the engines that start things, the GPUs, and the shipping of logs.

    agent       obeys the core and reports to it; may die at any time
    spawner     parent of every process run; small, outlives agent and server, keeps a journal

The files under `<data>/node` are listed in `corral.node.folder`.
"""
