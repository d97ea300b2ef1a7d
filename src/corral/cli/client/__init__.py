"""How commands find a Corral and call it."""
