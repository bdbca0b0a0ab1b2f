"""Tests of functions, without a database of your own.

A test calls a function as SQL does::

    from crosslane.testing import call

    def test_gross():
        assert call(gross, [100.0, None, (9.99, 1)]) == [119.0, None, 11.9]

pytest finds the fixtures ``crosslane_connection`` and ``crosslane_load`` by itself.
"""

from __future__ import annotations

from crosslane._testing.calls import call
from crosslane._testing.engines import close

__all__ = ["call", "close"]
