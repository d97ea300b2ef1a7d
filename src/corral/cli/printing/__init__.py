"""What commands print: texts, tables, live screens, and errors as one line."""
