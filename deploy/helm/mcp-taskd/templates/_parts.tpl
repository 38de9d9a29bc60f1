{{- define "mcp-taskd.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "mcp-taskd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mcp-taskd.labels" -}}
{{ include "mcp-taskd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "mcp-taskd.config" -}}
{{- $server := dict "listen" "0.0.0.0:8787" "admin_listen" "0.0.0.0:9090" "state_dir" "/var/lib/mcp-taskd" -}}
{{- $database := dict "backend" .Values.database.backend -}}
{{- $own := dict "server" $server "database" $database -}}
{{- if eq .Values.database.backend "postgres" -}}
{{- $_ := set $database "postgres_url" "$DATABASE_URL" -}}
{{- $_ := set $own "deployment" (dict "multi_instance" true) -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $own | toYaml -}}
{{- end -}}

{{- define "mcp-taskd.files" -}}
config.yaml: |
{{ include "mcp-taskd.config" . | indent 2 }}
extensions_config.json: |
{{ ternary (toString .Values.extensions | trim) (.Values.extensions | mustToPrettyJson) (kindIs "string" .Values.extensions) | indent 2 }}
{{- end -}}

{{- /* What the daemon and the migration have in common. */ -}}
{{- define "mcp-taskd.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "mcp-taskd.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom: [{ secretRef: { name: {{ .Values.secretName }} } }]
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
volumeMounts:
  - { name: config, mountPath: /etc/mcp-taskd, readOnly: true }
  - { name: state, mountPath: /var/lib/mcp-taskd }
  - { name: tmp, mountPath: /tmp }
{{- end -}}
