"""Text of HTML pages without what a reader does not see."""
