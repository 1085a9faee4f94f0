"""Coordinates of an effect that follow its scale: the maps, and how they are learned."""
