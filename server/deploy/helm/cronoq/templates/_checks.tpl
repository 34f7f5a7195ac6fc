{{/* What would not start, or would start wrong, is refused here, with what to do about it. */}}
{{- define "cronoq.checks" -}}
{{- $v := .Values -}}
{{- if eq $v.store.kind "postgres" -}}
{{- if and $v.store.database.url $v.store.database.existingSecret -}}
{{- fail "store.database: set url or existingSecret, not both" -}}
{{- end -}}
{{- if not (or $v.store.database.url $v.store.database.existingSecret) -}}
{{- fail "store.database: set existingSecret (and key), or url" -}}
{{- end -}}
{{- else if or (gt (int $v.replicas) 1) $v.shards -}}
{{- fail (printf "store.kind %s is kept by one process: set replicas to 1 and leave shards empty" $v.store.kind) -}}
{{- end -}}
{{- if not (or $v.auth.tokens $v.auth.certs $v.auth.insecureNoAuth) -}}
{{- fail "auth: give tokens or certs; or set auth.insecureNoAuth to true, and everybody who reaches the servers may do everything" -}}
{{- end -}}
{{- if and $v.auth.certs (not $v.tls.requireClientCerts) -}}
{{- fail "auth.certs: set tls.requireClientCerts, or no caller will show a certificate" -}}
{{- end -}}
{{- if and $v.tls.requireClientCerts (not $v.tls.existingSecret) -}}
{{- fail "tls.requireClientCerts: set tls.existingSecret" -}}
{{- end -}}
{{- if and $v.shards (not $v.tls.existingSecret) (not $v.insecurePeerHttp) -}}
{{- fail "shards pass callers' tokens on: set tls.existingSecret, or insecurePeerHttp to true" -}}
{{- end -}}
{{- range $v.auth.tokens -}}
{{- if and .value .existingSecret -}}
{{- fail (printf "auth.tokens %s: set value or existingSecret, not both" .name) -}}
{{- end -}}
{{- if not (or .value .existingSecret) -}}
{{- fail (printf "auth.tokens %s: set existingSecret (and key), or value" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
