"""Auto Scaling groups on a virtual clock."""
