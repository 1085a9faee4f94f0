"""The warm-up: a start by Newton's path, step sizes and metrics by windows."""
