"""A Spark program that runs the programs of a test. Questions and answers are lines of JSON."""

import json
import os
import sys
import textwrap
import traceback

from pyspark.sql import SparkSession

import crosslane.spark


def session(master, files, settings, conf):
    builder = SparkSession.builder.master(master).config(map=conf)
    return crosslane.spark.enable(builder, *files, **settings).getOrCreate()


def main():
    # The output of functions, of Spark and of programs goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    names = {"session": session}
    for line in sys.stdin:
        asked, text = json.loads(line)
        try:
            body = textwrap.indent(textwrap.dedent(text), "    ")
            exec("def program():\n    global spark\n" + body, names)
            answer = {"value": names["program"]()}
        except BaseException as error:
            answer = {"error": str(error), "traceback": traceback.format_exc()}
        print(json.dumps({"asked": asked, **answer}, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
