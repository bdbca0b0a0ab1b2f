"""PySpark's own functions with Crosslane: an unchanged program gives what it gives without."""
