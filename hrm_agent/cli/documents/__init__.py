"""Commands about documents and tokens."""
