"""Conversions between Arrow arrays and SQL types, for both ends of a lane."""
