"""Exact acceptance from a few rows: families with bounds, expansions, alias tables, thinning."""
