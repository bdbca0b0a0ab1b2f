package org.apache.spark.sql.crosslane
package definitions

import java.lang.reflect.{InvocationHandler, InvocationTargetException, Proxy}
import org.apache.spark.sql.catalyst.parser.ParserInterface
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.crosslane.libraries.NativeLibrary

/**
 * Spark's parser, which also knows `CREATE FUNCTION ... LANGUAGE python AS $$ ... $$`.
 *
 * It is a proxy, because the parser's interface has other methods in each version of Spark.
 */
private[crosslane] object DefinitionParser {

  /** What a definition has. The native half decides; most texts need not be shown to it. */
  private val Words = """(?is)\s*(?:--.*|/\*.*)?create\b.*\bfunction\b.*\blanguage\b.*""".r.pattern

  def apply(spark: ParserInterface): ParserInterface = {
    val handler: InvocationHandler = (_, method, arguments) => {
      val plan = Option(arguments).flatMap(_.headOption).collect {
        case text: String if method.getName.startsWith("parsePlan") => text
      }
      plan.flatMap(definition).getOrElse {
        try method.invoke(spark, Option(arguments).getOrElse(Array.empty[AnyRef]): _*)
        catch { case error: InvocationTargetException => throw error.getCause }
      }
    }
    val parser = classOf[ParserInterface]
    Proxy.newProxyInstance(parser.getClassLoader, Array[Class[_]](parser), handler).asInstanceOf[ParserInterface]
  }

  private def definition(text: String): Option[LogicalPlan] =
    if (Words.matcher(text).matches()) {
      NativeLibrary.require()
      Definition.parse(text).map(CreateFunction(_))
    } else {
      None
    }
}
