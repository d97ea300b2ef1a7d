"""Hosts, instances, their metrics, cost and history: what services share and no AWS API serves."""
