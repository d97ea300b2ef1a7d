"""Terminal sessions of ExecuteCommand."""
