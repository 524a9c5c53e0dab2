{{/* The first part of all names, so that a suffix still fits. */}}
{{- define "mirrorflow.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 29 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{- define "mirrorflow.operator" -}}
{{- include "mirrorflow.fullname" . }}-operator
{{- end -}}

{{/* Of what belongs to no namespace: two releases do not meet there. */}}
{{- define "mirrorflow.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "mirrorflow.operator" .) -}}
{{- end -}}

{{- define "mirrorflow.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "mirrorflow.operator" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is missing: serviceAccount.create is false, so name one that exists" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "mirrorflow.selector" -}}
app.kubernetes.io/name: mirrorflow-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mirrorflow.labels" -}}
{{ include "mirrorflow.selector" . }}
{{ include "mirrorflow.commonLabels" . }}
{{- end -}}

{{- define "mirrorflow.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: mirrorflow
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "mirrorflow.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The namespaces whose MirrorFlows are looked after, as a JSON list; empty: all of the cluster. */}}
{{- define "mirrorflow.namespaces" -}}
{{- if .Values.watch.cluster -}}
{{- if .Values.watch.namespaces -}}
{{- fail "watch.namespaces and watch.cluster are both set: the whole cluster includes every namespace, so name none" -}}
{{- end -}}
[]
{{- else -}}
{{- default (list .Release.Namespace) .Values.watch.namespaces | toJson -}}
{{- end -}}
{{- end -}}

{{/* What an admission policy is bound to, beside the resources that it is about. */}}
{{- define "mirrorflow.namespaceSelector" -}}
{{- with include "mirrorflow.namespaces" . | fromJsonArray -}}
matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
{{- end -}}
{{- end -}}

{{/* For a monitor: where the connectors' pods are. */}}
{{- define "mirrorflow.monitoredNamespaces" -}}
{{- with include "mirrorflow.namespaces" . | fromJsonArray -}}
matchNames: {{ toJson . }}
{{- else -}}
any: true
{{- end -}}
{{- end -}}

{{/* Of the operator's pods and the test's: what the restricted Pod Security Standard asks for. */}}
{{- define "mirrorflow.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "mirrorflow.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The versions of replicators that the operator runs: its own and, so that an upgrade holds up no flow, the one before. */}}
{{- define "mirrorflow.versions" -}}
{{- $before := index .Chart.Annotations "mirrorflow.io/previous-version" -}}
{{- default (compact (list .Chart.AppVersion $before)) .Values.replicator.versions | toJson -}}
{{- end -}}
