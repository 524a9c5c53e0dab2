// The definitions of the Prometheus operator's resources, which the chart makes: files of its module, nothing is built.
module mirrorflow.io/tests/monitoring

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
