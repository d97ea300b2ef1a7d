"""HTTP connections: heads, bodies, responses, websockets and limits."""
