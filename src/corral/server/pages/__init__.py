"""Pages that are not operations of AWS."""
