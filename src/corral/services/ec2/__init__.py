"""EC2's network resources, stored only: no packet is routed or filtered by them."""
