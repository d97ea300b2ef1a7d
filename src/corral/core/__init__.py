"""The ground floor: transactions on a database, undo, hand-overs, clocks, ids and errors."""
