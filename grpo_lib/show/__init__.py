"""Figures and interactive tables of the book: ``plots`` (matplotlib) and ``widgets`` (anywidget).

Nothing in the library imports this package; the book does. It needs the ``book`` extra.
"""
