"""PySpark's functions as Spark's plugin takes them over: the same results as in Spark's own workers.

What is supported, by the eval type (``pyspark/util.py``) and the Spark types of arguments and result:

=====  =======================  ===============================================================
100    ``@udf``                 ``_ATOMS``, and arrays of them without a NULL that is ruled out
101    ``@udf(useArrow=True)``  ``_ATOMS``, and arrays, maps and structs of them
200    ``@pandas_udf``          as 101
250    ``@arrow_udf``           as 101
204    ``@pandas_udf``          as 101, with iterators
251    ``@arrow_udf``           as 101, with iterators
205    ``mapInPandas``          as 101: rows of them
207    ``mapInArrow``           as 101: rows of them
=====  =======================  ===============================================================

``_ATOMS`` are boolean, byte, short, integer, long, float, double, string, binary, date, timestamp, timestamp_ntz and
decimal(p,s). All else is refused with a reason, by :func:`reason_against` before a query is planned, or by
:class:`Unsupported` when what was pickled is looked at: other types (also strings with a collation, char, varchar),
functions of columns without an argument (nothing tells how many rows they have), profilers, and threads
(``spark.sql.execution.pythonUDF.arrow.concurrency.level``).

A function of rows (100) is called by the guest's own loop. The result that it nearly always has goes into the column as
it is; any other becomes what Spark makes of it (``EvaluatePython.makeFromJava``): mostly NULL for a value of another type,
and integers lose the bits that do not fit. Functions of columns (101, 200, 250) run Spark's own code for a batch
(``pyspark.worker``), with shortcuts for common types where nothing else could come out. There Spark's answers depend on
what lies in the same batch, which therefore has ``spark.sql.execution.arrow.maxRecordsPerBatch`` rows in both. Functions of
iterators (204, 251, 205, 207) see the batches of a whole task, by the same code.
"""
