package org.apache.spark.sql.crosslane
package libraries

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import org.apache.spark.sql.types.DataType
import scala.jdk.CollectionConverters._

/** A parameter of a function. */
private[crosslane] final case class Parameter(name: String, dataType: DataType, named: Boolean)

/** A function of a library, as the native half describes it. */
private[crosslane] final case class Description(
    name: String,
    index: Int,
    kind: String,
    calling: String,
    iterates: Boolean,
    language: String,
    deterministic: Boolean,
    signature: String,
    parameters: Seq[Parameter],
    returns: Option[DataType],
    unsupported: Option[String],
    place: String,
    text: String)

private object Description {
  def parse(json: String): Seq[Description] = {
    val tree = new ObjectMapper().readTree(json)
    val language = tree.get("language").asText
    tree.get("functions").elements.asScala.map(description(_, language)).toSeq
  }

  private def description(node: JsonNode, language: String): Description = {
    val named = node.get("named").elements.asScala.map(_.asBoolean).toSeq
    val parameters =
      Option(node.get("parameters")).toSeq.flatMap(_.elements.asScala).zipWithIndex.map { case (parameter, index) =>
        val dataType = DataType.fromJson(parameter.get("type").toString)
        Parameter(parameter.get("name").asText, dataType, named.lift(index).getOrElse(false))
      }
    Description(
      name = node.get("name").asText,
      index = node.get("index").asInt,
      kind = node.get("kind").asText,
      calling = node.get("calling").asText,
      iterates = node.get("iterates").asBoolean,
      language = language,
      deterministic = node.get("deterministic").asBoolean,
      signature = node.get("signature").asText,
      parameters = parameters,
      returns = Option(node.get("returns")).map(returns => DataType.fromJson(returns.toString)),
      unsupported = Option(node.get("unsupported")).map(_.asText),
      place = s"${node.get("file").asText}:${node.get("line").asInt}",
      text = node.get("description").asText)
  }
}
