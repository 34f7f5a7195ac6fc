{{/* cronoq.toml: what the user says, then what the chart knows. JSON texts and lists are TOML, too. */}}
{{- define "cronoq.toml" -}}
{{- $root := . -}}
{{ .Values.config | trim }}
{{- range .Values.auth.tokens }}

[[auth.tokens]]
name = {{ .name | toJson }}
role = {{ .role | toJson }}
token_env = {{ include "cronoq.tokenVariable" . | toJson }}
{{- with .pools }}
pools = {{ toJson . }}
{{- end }}
{{- with .tenant }}
tenant = {{ toJson . }}
{{- end }}
{{- end }}
{{- range .Values.auth.certs }}

[[auth.certs]]
dns_name = {{ .dnsName | toJson }}
role = {{ .role | toJson }}
{{- with .name }}
name = {{ toJson . }}
{{- end }}
{{- with .pools }}
pools = {{ toJson . }}
{{- end }}
{{- with .tenant }}
tenant = {{ toJson . }}
{{- end }}
{{- end }}
{{- $scheme := ternary "https" "http" (ne .Values.tls.existingSecret "") }}
{{- range .Values.shards }}
{{- $host := printf "%s.%s.svc" (include "cronoq.memberName" (dict "root" $root "shard" .name)) $root.Release.Namespace }}

[[shards]]
name = {{ .name | toJson }}
number = {{ int .number }}
pools = {{ toJson .pools }}
endpoint = {{ default (printf "%s://%s:7070" $scheme $host) .endpoint | toJson }}
http_endpoint = {{ default (printf "%s://%s:7071" $scheme $host) .httpEndpoint | toJson }}
{{- end }}
{{- end -}}
