package org.apache.spark.sql.execution.python

import org.apache.spark.QueryContext
import org.apache.spark.api.python.PythonException

/**
 * Errors of PySpark's functions as Spark raises them. PySpark recognizes them by their class, and
 * by a class of this package in the stack trace.
 */
private[sql] object CrosslaneErrors {

  /** The exception for a traceback, in the form of this version of Spark. */
  def pythonException(traceback: String): RuntimeException = {
    val constructors = classOf[PythonException].getConstructors
    val old = constructors.find(_.getParameterTypes.sameElements(Array[Class[_]](classOf[String], classOf[Throwable])))
    val made = old match {
      case Some(constructor) => constructor.newInstance(traceback, null)
      case None =>
        val parameters = Map("msg" -> "An exception was thrown from the Python worker", "traceback" -> traceback)
        val newer = constructors.find(_.getParameterTypes.lift(1).contains(classOf[Map[String, String]]))
        newer.get.newInstance("PYTHON_EXCEPTION", parameters, null, Array.empty[QueryContext], "")
    }
    made.asInstanceOf[RuntimeException]
  }
}
