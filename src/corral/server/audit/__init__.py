"""Decides which calls are recorded in the audit, and records them."""
