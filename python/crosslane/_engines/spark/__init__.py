"""Functions that PySpark has pickled, with the same results as in Spark's own workers.

The supported functions, by the eval type (``pyspark/util.py``) and the Spark types of arguments and
result:

=====  =======================  ===============================================================
100    ``@udf``                 ``_ATOMS``, and arrays of them; a result's array must admit NULL
101    ``@udf(useArrow=True)``  ``_ATOMS``, and arrays, maps and structs of them
200    ``@pandas_udf``          as 101
250    ``@arrow_udf``           as 101
204    ``@pandas_udf``          as 101, with iterators
251    ``@arrow_udf``           as 101, with iterators
205    ``mapInPandas``          as 101: rows of them
207    ``mapInArrow``           as 101: rows of them
=====  =======================  ===============================================================

``_ATOMS`` are boolean, byte, short, integer, long, float, double, string, binary, date, timestamp,
timestamp_ntz and decimal(p,s). Other functions are refused with a reason: by
``support.reason_against`` before a query is planned, or by ``support.Unsupported`` when the pickled
function is loaded. Refused are other types (also strings with a collation, char and varchar),
profilers, threads (``spark.sql.execution.pythonUDF.arrow.concurrency.level``), and functions of
columns without an argument, because nothing tells their number of rows.

The guest's own loop calls a function of rows (100). A result of the usual class goes into the
column as it is. Any other result becomes what Spark makes of it (``EvaluatePython.makeFromJava``):
mostly NULL for a value of another type, and integers lose the bits that do not fit. Functions of
columns (101, 200, 250) run Spark's own code for a batch (``pyspark.worker``), with shortcuts for
common types that give the same results. In Spark, a result may depend on the other rows of its
batch. So batches have ``spark.sql.execution.arrow.maxRecordsPerBatch`` rows here, too. Functions of
iterators (204, 251, 205, 207) see the batches of a whole task, by the same code.
"""
