"""Values of a store: serialised, content-addressed, packed, encrypted and read back strictly."""
