package org.apache.spark.sql.crosslane
package definitions

import com.fasterxml.jackson.databind.ObjectMapper
import dev.crosslane.spark.Native

/**
 * A function that SQL defines.
 *
 * @param path the file with the function, on the driver
 */
private[crosslane] final case class Definition(name: String, orReplace: Boolean, ifNotExists: Boolean, path: String)

private[crosslane] object Definition {

  /**
   * The definition of a text; None if the text is another statement.
   *
   * @throws CrosslaneException if it cannot be understood
   */
  def parse(text: String): Option[Definition] =
    Option(Native.definition(text)).map { json =>
      val tree = new ObjectMapper().readTree(json)
      Definition(
        name = tree.get("name").asText,
        orReplace = tree.get("or_replace").asBoolean,
        ifNotExists = tree.get("if_not_exists").asBoolean,
        path = tree.get("path").asText)
    }
}
