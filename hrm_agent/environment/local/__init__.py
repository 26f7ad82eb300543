"""Python in processes of this machine."""
