"""PySpark's own functions with Crosslane: an unchanged program has the same results as without it."""
