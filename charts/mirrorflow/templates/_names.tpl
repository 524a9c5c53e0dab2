{{/* Prefix of all names, short enough for a suffix. */}}
{{- define "mirrorflow.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc (sub 39 (len $name) | int) | trimSuffix "-") $name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "mirrorflow.operator" -}}
{{- include "mirrorflow.fullname" . }}-operator
{{- end -}}

{{/* Prefix of cluster-scoped names, unique for each release. */}}
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
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "mirrorflow.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The watched namespaces as a JSON list; empty: the whole cluster. */}}
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

{{/* admission.csiDrivers as a JSON list. An upgrade with --reuse-values has no value that its first release did not have. */}}
{{- define "mirrorflow.csiDrivers" -}}
{{- if hasKey .Values.admission "csiDrivers" -}}
{{- toJson .Values.admission.csiDrivers -}}
{{- else -}}
["secrets-store.csi.k8s.io"]
{{- end -}}
{{- end -}}

{{/* The namespaces in which an admission policy applies. */}}
{{- define "mirrorflow.namespaceSelector" -}}
{{- with include "mirrorflow.namespaces" . | fromJsonArray -}}
matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
{{- end -}}
{{- end -}}

{{/* The namespaceSelector of a monitor: the namespaces of the connectors' pods. */}}
{{- define "mirrorflow.monitoredNamespaces" -}}
{{- with include "mirrorflow.namespaces" . | fromJsonArray -}}
matchNames: {{ toJson . }}
{{- else -}}
any: true
{{- end -}}
{{- end -}}

{{/* Security context of the operator's and the test's pods: the restricted Pod Security Standard. */}}
{{- define "mirrorflow.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "mirrorflow.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The replicator versions that the operator offers: its own and the previous one, so that an upgrade stops no flow. */}}
{{- define "mirrorflow.versions" -}}
{{- $before := index .Chart.Annotations "mirrorflow.io/previous-version" -}}
{{- default (compact (list .Chart.AppVersion $before)) .Values.replicator.versions | toJson -}}
{{- end -}}

{{/* The accounts whose Jobs may have a token for a switchover, as a JSON list of namespace/name. */}}
{{- define "mirrorflow.switchoverAccounts" -}}
{{- $accounts := list }}
{{- range concat ((.Values.switchovers).endpoints | default list) ((.Values.switchovers).hooks | default list) ((.Values.switchovers).fences | default list) }}
{{- $namespace := .namespace | default $.Release.Namespace }}
{{- range .flows }}
{{- $accounts = concat $accounts (list (printf "%s/%s" $namespace .) (printf "%s/%s-source" $namespace .)) }}
{{- end }}
{{- range .serviceAccounts }}
{{- $accounts = append $accounts (printf "%s/%s" $namespace .) }}
{{- end }}
{{- end }}
{{- toJson (uniq $accounts) }}
{{- end -}}

{{/* The ServiceAccounts that the Jobs of hooks may have, as a JSON list of namespace/pair/account. */}}
{{- define "mirrorflow.hookAccounts" -}}
{{- $accounts := list }}
{{- range (.Values.switchovers).hooks }}
{{- $before := printf "%s/%s" (.namespace | default $.Release.Namespace) .pair }}
{{- range .serviceAccounts }}
{{- $accounts = append $accounts (printf "%s/%s" $before .) }}
{{- end }}
{{- end }}
{{- toJson $accounts }}
{{- end -}}

{{/* The user names of Switchovers with Jobs of hooks or NetworkPolicies, as a JSON list. */}}
{{- define "mirrorflow.switchoverUsers" -}}
{{- $users := list }}
{{- range concat ((.Values.switchovers).hooks | default list) ((.Values.switchovers).fences | default list) }}
{{- $namespace := .namespace | default $.Release.Namespace }}
{{- range .flows }}
{{- $users = concat $users (list (printf "system:serviceaccount:%s:%s" $namespace .) (printf "system:serviceaccount:%s:%s-source" $namespace .)) }}
{{- end }}
{{- end }}
{{- toJson (uniq $users) }}
{{- end -}}
