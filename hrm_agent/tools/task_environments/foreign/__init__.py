"""Scripts that run in the interpreter of an environment. They import nothing of this package."""
