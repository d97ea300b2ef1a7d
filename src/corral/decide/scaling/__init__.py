"""How many instances and tasks there should be, and which ones start and end."""
