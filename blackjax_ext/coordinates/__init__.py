"""Coordinates between an effect and its noise: the maps, and how centred each effect should be."""
