"""What a gate of stored runs finds, and what it asks."""
