{{/* Names and labels; everything of a shard is named after the release and the shard. */}}

{{- define "cronoq.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "cronoq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "cronoq.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "cronoq.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Call with (dict "root" $ "shard" name); an empty shard is the whole. */}}
{{- define "cronoq.memberName" -}}
{{- $whole := include "cronoq.fullname" .root -}}
{{- if .shard }}{{ printf "%s-%s" $whole .shard }}{{ else }}{{ $whole }}{{ end -}}
{{- end -}}

{{- define "cronoq.selector" -}}
app.kubernetes.io/name: {{ include "cronoq.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: server
{{- if .shard }}
cronoq/shard: {{ .shard | quote }}
{{- end }}
{{- end -}}

{{- define "cronoq.labels" -}}
{{ include "cronoq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "cronoq.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "cronoq.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The shards' names, or one empty name where there are none; as JSON. */}}
{{- define "cronoq.members" -}}
{{- $names := list -}}
{{- range .Values.shards }}{{ $names = append $names .name }}{{ end -}}
{{- if not $names }}{{ $names = list "" }}{{ end -}}
{{- toJson $names -}}
{{- end -}}

{{- define "cronoq.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* The environment variable that holds a token. */}}
{{- define "cronoq.tokenVariable" -}}
TOKEN_{{ .name | upper | replace "-" "_" }}
{{- end -}}
