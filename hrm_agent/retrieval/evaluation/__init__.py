"""How well what was asked for is found again, by the spans that answer it."""
