"""EC2's network resources. They are stored only: Corral does not route or filter packets by them."""
