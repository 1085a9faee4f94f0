"""Programs that show what the packages do."""
