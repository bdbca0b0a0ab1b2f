"""Workers for the functions that Spark's own operators call: groups, windows, tables, and functions
that use a broadcast variable, an accumulator or the task's context.

Spark's operator and such a worker exchange Spark's own stream of bytes. The worker runs the code of
the installed PySpark (``pyspark.worker``), so each kind of function behaves as there. Two things are
faster:

- :mod:`.daemon` imports what functions need, before it starts the first worker. Each worker is a
  fork of it.
- :mod:`.groups` and :mod:`.tables` replace parts of Spark's loops. These parts convert one group or
  one row at a time, and take most of the time if groups are small. The replacements handle common
  types, and leave everything else to Spark's code.
"""
