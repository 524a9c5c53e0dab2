"""Tables of Spark: `spark.read.format("mirrorflow")`, a Python data source."""
