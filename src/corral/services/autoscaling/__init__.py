"""Handlers of EC2 Auto Scaling: groups, scaling policies, lifecycle hooks, scheduled actions and instance refreshes."""
