"""Bounds of the derivatives of programs over boxes: jets of intervals, functions, a reader."""
