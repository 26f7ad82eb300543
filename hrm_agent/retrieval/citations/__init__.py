"""Citations: quotes that are exact spans of their sources, and the marks that refer to them."""
