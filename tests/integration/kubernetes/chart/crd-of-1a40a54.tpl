{{- /* The file as it is, not through fromYaml: that would make floats of large numbers. */ -}}
{{- if .Values.crds.enabled }}
{{- $annotations := "" }}
{{- if .Values.crds.keep }}
{{- $annotations = "  annotations:\n    helm.sh/resource-policy: keep\n" }}
{{- end }}
{{- $labels := include "mirrorflow.labels" . | nindent 4 | printf "  labels:%s\n" }}
{{ .Files.Get "files/mirrorflows.yaml" | replace "\nmetadata:\n" (printf "\nmetadata:\n%s%s" $annotations $labels) }}
{{- end }}
