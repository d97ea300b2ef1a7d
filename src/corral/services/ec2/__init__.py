"""EC2's network resources. They are stored only: they route and filter no packets."""
