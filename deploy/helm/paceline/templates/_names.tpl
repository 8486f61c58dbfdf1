{{- define "paceline.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "paceline.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "paceline.labels" -}}
{{ include "paceline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "paceline.settings" -}}
{{- $settings := dict "data" "/srv/paceline" "bind" "0.0.0.0:8765" }}
{{- with .Values.store }}{{ $_ := set $settings "store" . }}{{ end }}
{{- with .Values.blobs }}{{ $_ := set $settings "blobs" . }}{{ end }}
{{- range $file, $_ := .Values.files }}
{{- $name := trimSuffix ".yaml" $file | replace "-" "_" }}
{{- if has $name (list "alerts" "sign_on" "projects") }}{{ $_ := set $settings $name (printf "/etc/paceline/%s" $file) }}{{ end }}
{{- end }}
{{- if .Values.ingress.enabled }}{{ $_ := set $settings "base_url" (printf "%s://%s" (ternary "https" "http" (ne .Values.ingress.tlsSecret "")) .Values.ingress.host) }}{{ end }}
{{- merge (deepCopy .Values.config) $settings | toYaml }}
{{- end }}

{{- /* Whether the store is shared. */ -}}
{{- define "paceline.several" -}}
{{- if or (gt (int .Values.instances) 1) (gt (int .Values.workers) 0) }}yes{{ end -}}
{{- end }}
