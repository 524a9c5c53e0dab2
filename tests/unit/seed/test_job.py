"""What Spark says of a task that failed is a wall of text; the user gets its sentence."""

from mirrorflow_seed.verify.job import fault_of

SPARK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 8 times
Traceback (most recent call last):
  File "job.py", line 52, in __call__
mirrorflow_replicator.errors.UnreachableError: Cluster east cannot be reached at a:9092: no answer within 20 s.

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""


def test_the_tasks_own_sentence_is_found() -> None:
    expected = "Cluster east cannot be reached at a:9092: no answer within 20 s."
    assert expected == fault_of(RuntimeError(SPARK))
    assert "something else" == fault_of(RuntimeError("something else\n at x"))
