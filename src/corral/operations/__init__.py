"""What the operations of all services share: the tables of handlers, pages, tags and stored resources."""
