package org.apache.spark.sql.crosslane
package definitions

import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeReference}
import org.apache.spark.sql.execution.command.LeafRunnableCommand
import org.apache.spark.sql.types.StringType
import org.apache.spark.sql.{Row, SparkSession}

/** Defines a function in a session. Its result has the signatures. */
private[crosslane] final case class CreateFunction(definition: Definition) extends LeafRunnableCommand {
  override val output: Seq[Attribute] = Seq(AttributeReference("signature", StringType, nullable = false)())

  override def run(session: SparkSession): Seq[Row] = Plugin.create(session, definition).map(Row(_))
}
