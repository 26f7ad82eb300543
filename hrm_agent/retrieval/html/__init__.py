"""Text of HTML pages without parts that a reader does not see."""
