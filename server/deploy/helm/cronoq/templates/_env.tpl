{{/* The variables of a server. They win over the file, so what the chart decides stays decided. */}}
{{- define "cronoq.env" -}}
{{- $secret := include "cronoq.fullname" . -}}
- {name: CRONOQ_SERVER__GRPC_ADDR, value: "0.0.0.0:7070"}
- {name: CRONOQ_SERVER__HTTP_ADDR, value: "0.0.0.0:7071"}
- {name: CRONOQ_SERVER__METRICS_ADDR, value: "0.0.0.0:7072"}
- {name: CRONOQ_SERVER__SHUTDOWN_GRACE_S, value: {{ .Values.shutdownGraceSeconds | toString | quote }}}
- {name: CRONOQ_STORE__KIND, value: {{ .Values.store.kind | quote }}}
{{- if eq .Values.store.kind "postgres" }}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ default $secret .Values.store.database.existingSecret }}
      key: {{ ternary .Values.store.database.key "url" (ne .Values.store.database.existingSecret "") }}
{{- with .Values.store.schema }}
- {name: CRONOQ_STORE__SCHEMA, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- if eq .Values.store.kind "sqlite" }}
- {name: CRONOQ_STORE__PATH, value: /var/lib/cronoq/queue.db}
{{- end }}
{{- if .Values.auth.insecureNoAuth }}
- {name: CRONOQ_SERVER__INSECURE_NO_AUTH, value: "true"}
{{- end }}
{{- range .Values.auth.tokens }}
- name: {{ include "cronoq.tokenVariable" . }}
  valueFrom:
    secretKeyRef:
      name: {{ default $secret .existingSecret }}
      key: {{ if .existingSecret }}{{ default "token" .key }}{{ else }}{{ printf "token-%s" .name }}{{ end }}
{{- end }}
{{- if .Values.tls.existingSecret }}
- {name: CRONOQ_SERVER__TLS__CERT, value: /etc/cronoq/tls/tls.crt}
- {name: CRONOQ_SERVER__TLS__KEY, value: /etc/cronoq/tls/tls.key}
{{- if .Values.tls.requireClientCerts }}
- {name: CRONOQ_SERVER__TLS__CLIENT_CA, value: /etc/cronoq/tls/ca.crt}
{{- end }}
{{- if .Values.shards }}
{{- if .Values.tls.peerCa }}
- {name: CRONOQ_SERVER__PEER_TLS__CA, value: /etc/cronoq/tls/ca.crt}
{{- end }}
{{- if .Values.tls.requireClientCerts }}
- {name: CRONOQ_SERVER__PEER_TLS__CERT, value: /etc/cronoq/tls/tls.crt}
- {name: CRONOQ_SERVER__PEER_TLS__KEY, value: /etc/cronoq/tls/tls.key}
{{- end }}
{{- end }}
{{- else if .Values.shards }}
- {name: CRONOQ_SERVER__INSECURE_PEER_HTTP, value: {{ .Values.insecurePeerHttp | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
