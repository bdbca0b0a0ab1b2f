package org.apache.spark.sql.crosslane
package planning

import org.apache.spark.sql.catalyst.expressions.{
  Attribute,
  AttributeReference,
  AttributeSet,
  Expression,
  NamedExpression,
  PythonUDF
}
import org.apache.spark.sql.catalyst.plans.logical.{
  ArrowEvalPython,
  BaseEvalPython,
  BatchEvalPython,
  Generate,
  LogicalPlan,
  MapInArrow,
  MapInPandas,
  Project
}
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.crosslane.libraries.LaneFunction
import org.apache.spark.sql.crosslane.operators.{LaneDeclinedExec, LaneEvalExec, LaneGenerateExec, LaneStreamExec, LaneWorkerExec}
import org.apache.spark.sql.crosslane.pyspark.{PySpark, Workers}
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan, SparkStrategy}

/**
 * Plans calls over lanes. Spark's rules have moved the calls from all operators into
 * [[ArrowEvalPython]] nodes. Such a node may also have functions of Spark's. They get a node of
 * their own then.
 */
private[crosslane] object LaneStrategy extends SparkStrategy {

  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case Project(list, node: BaseEvalPython) => apply(node).map(plan => ProjectExec(list, keeping(plan, list)))
    case ArrowEvalPython(functions, results, child, evalType) if functions.exists(hasLane) =>
      if (functions.forall(isAllLanes)) {
        LaneEvalExec(functions, results, child.output, planLater(child)) :: Nil
      } else {
        planLater(separated(functions, results, child, evalType)) :: Nil
      }
    case node @ ArrowEvalPython(functions, results, child, _) => pySpark(node, functions, results, child)
    case node @ BatchEvalPython(functions, results, child) => pySpark(node, functions, results, child)
    case node @ MapInPandas(function: PythonUDF, output, child, isBarrier, profile) if wantsPySpark(node) =>
      mapInBatches(node, function, output, child, isBarrier || profile.nonEmpty)
    case node @ MapInArrow(function: PythonUDF, output, child, isBarrier, profile) if wantsPySpark(node) =>
      mapInBatches(node, function, output, child, isBarrier || profile.nonEmpty)
    case node if wantsPySpark(node) && Workers.functions(node).nonEmpty => withWorkers(node, None)
    case generate @ Generate(generator: LaneGenerator, _, outer, _, _, child) =>
      val made = generate.qualifiedGeneratorOutput
      LaneGenerateExec(generator, generate.requiredChildOutput, outer, made, planLater(child)) :: Nil
    case LaneStream(function, output, child) => LaneStreamExec(function, child.output, output, planLater(child)) :: Nil
    case _ => Nil
  }

  /**
   * The same operator without the columns that no expression above needs. It need not store them.
   */
  private def keeping(plan: SparkPlan, list: Seq[NamedExpression]): SparkPlan = plan match {
    case eval: LaneEvalExec => eval.copy(kept = eval.kept.filter(AttributeSet(list.flatMap(_.references)).contains))
    case other => other
  }

  private val Planned = TreeNodeTag[Unit]("crosslane.planned")

  /** PySpark's functions over lanes, if the user wants that and lanes can call them. */
  private def pySpark(node: LogicalPlan, functions: Seq[PythonUDF], results: Seq[Attribute], child: LogicalPlan): Seq[SparkPlan] =
    if (!wantsPySpark(node)) {
      Nil
    } else if (functions.exists(PySpark.isChainOfIterators)) {
      planLater(unchained(functions, results, child)) :: Nil
    } else {
      PySpark.translated(functions) match {
        case Right(lanes) => LaneEvalExec(lanes, results, child.output, planLater(child), isPySpark = true) :: Nil
        case Left(reason) => withWorkers(node, Some(reason))
      }
    }

  /**
   * The same functions of iterators with a node for each. Spark has one node for a chain of them.
   */
  private def unchained(functions: Seq[PythonUDF], results: Seq[Attribute], child: LogicalPlan): LogicalPlan = {
    val inner = functions.flatMap(_.children.collect { case one: PythonUDF => one })
    val made = inner.map(resultOf)
    val below = ArrowEvalPython(inner, made, child, inner.head.evalType)
    val known = inner.zip(made).toMap[Expression, Attribute]
    val outer = functions.map(function =>
      function.withNewChildren(function.children.map(argument => known.getOrElse(argument, argument))).asInstanceOf[PythonUDF])
    ArrowEvalPython(outer, results, below, outer.head.evalType)
  }

  /** PySpark's `mapInPandas` or `mapInArrow` over lanes, if lanes can run it. */
  private def mapInBatches(
      node: LogicalPlan,
      function: PythonUDF,
      output: Seq[Attribute],
      child: LogicalPlan,
      isSpecial: Boolean): Seq[SparkPlan] = {
    val columns = Program.struct(child.output)
    val translated =
      if (isSpecial) Left(s"${function.name}: it asks for a barrier or for resources")
      else if (PySpark.validatesSchemas) Left(s"${function.name}: ${PySpark.ValidateSchema} is set")
      else PySpark.translated(Seq(function.copy(children = Seq(columns))))
    translated match {
      case Right(Seq(PythonUDF(_, lane: LaneFunction, _, _, _, _, _))) =>
        LaneStreamExec(lane, child.output, output, planLater(child), isPySpark = true) :: Nil
      case Right(other) => throw new IllegalStateException(s"no function of a lane: $other")
      case Left(reason) => withWorkers(node, Some(reason))
    }
  }

  private def wantsPySpark(node: LogicalPlan): Boolean = PySpark.isEnabled && node.getTagValue(Planned).isEmpty

  /**
   * Spark's own operator for a node, with the workers of Crosslane's daemon.
   *
   * @param reason why its functions are not called over lanes, if lanes know their kind
   */
  private def withWorkers(node: LogicalPlan, reason: Option[String]): Seq[SparkPlan] = {
    val functions = Workers.functions(node)
    val names = functions.map(_._1).distinct.mkString(", ")
    val against = Workers.reasonAgainst.map(why => s"$names: $why")
    val copy =
      if (against.isEmpty) Workers.marked(node) else node.makeCopy(node.productIterator.map(_.asInstanceOf[AnyRef]).toArray)
    // Spark's own strategies get the copy. The node stays as it is, because AQE may plan it again.
    copy.setTagValue(Planned, ())
    val planned = planLater(copy)
    against match {
      case Some(why) => LaneDeclinedExec(why, planned) :: Nil
      case None => LaneWorkerExec(reason.getOrElse(names), functions.map(_._2.pythonExec).distinct, planned) :: Nil
    }
  }

  private def isLane(function: PythonUDF): Boolean = function.func.isInstanceOf[LaneFunction]

  private def hasLane(function: Expression): Boolean =
    function.exists { case one: PythonUDF => isLane(one); case _ => false }

  private def isAllLanes(function: Expression): Boolean =
    !function.exists { case one: PythonUDF => !isLane(one); case _ => false }

  /**
   * Two nodes in place of one. The lower one has the calls whose arguments contain only calls of
   * the same kind.
   */
  private def separated(functions: Seq[PythonUDF], results: Seq[Attribute], child: LogicalPlan, evalType: Int): LogicalPlan = {
    val innermost = functions.map(deepest).distinctBy(_.canonicalized)
    val kind = isLane(innermost.head)
    val (lower, _) = innermost.partition(isLane(_) == kind)
    val made = lower.map { function =>
      val at = functions.indexWhere(_ eq function)
      function -> (if (at >= 0) results(at) else resultOf(function))
    }
    val below = ArrowEvalPython(made.map(_._1), made.map(_._2), child, evalType)
    val known = made.map { case (function, result) => function.canonicalized -> result }.toMap
    val rest = functions.zip(results).filterNot { case (function, _) => made.exists(_._1 eq function) }
    val above = rest.map { case (function, result) =>
      function
        .withNewChildren(function.children.map(_.transformUp {
          case one: PythonUDF if known.contains(one.canonicalized) => known(one.canonicalized)
        }))
        .asInstanceOf[PythonUDF] -> result
    }
    if (above.isEmpty) below else ArrowEvalPython(above.map(_._1), above.map(_._2), below, evalType)
  }

  /** The first call below whose arguments contain no call of the other kind. */
  private def deepest(function: PythonUDF): PythonUDF = {
    val other = function.children.flatMap(_.collectFirst { case one: PythonUDF if isLane(one) != isLane(function) => one })
    other.headOption.map(deepest).getOrElse(function)
  }

  private def resultOf(function: PythonUDF): Attribute =
    AttributeReference(function.name, function.dataType)()
}
