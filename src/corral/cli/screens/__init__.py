"""Tables, live screens, and the text that commands print."""
