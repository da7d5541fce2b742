package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const (
	prometheusImage   = "docker.io/library/prometheus:debian"
	nodeExporterImage = "docker.io/library/prometheus-node-exporter:debian"
)

// prometheus is Debian's, which has no discovery of Kubernetes: it finds the exporters by the DNS.
var prometheus = program{
	name: "Prometheus, node exporter", version: "2.42.0, 1.5.0 (Debian 12)",
	scenario: "API servers, kubelets, their cAdvisor and the exporter of each node have samples that are younger than the round, and rates",
	images: []workshop.Image{
		{Name: prometheusImage, Foreign: func(context.Context) (images.Foreign, error) {
			return images.Foreign{Packages: []string{"prometheus"}, Config: v1.Config{User: "65534:65534"}}, nil
		}},
		{Name: nodeExporterImage, Foreign: func(context.Context) (images.Foreign, error) {
			return images.Foreign{Packages: []string{"prometheus-node-exporter"}, Config: v1.Config{User: "65534:65534"}}, nil
		}},
	},
	namespaces: []string{"monitoring"},
	install: func(ctx context.Context, s *site) error {
		nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var addresses []string
		for _, n := range nodes.Items {
			addresses = append(addresses, n.Status.Addresses[0].Address)
		}
		api, kubelets := strings.Join(addresses, ":6443, ")+":6443", strings.Join(addresses, ":10250, ")+":10250"
		return s.apply(ctx, fmt.Sprintf(prometheusManifests, api, kubelets))
	},
	fact: func(ctx context.Context, s *site, _ round) error {
		began, nodes := time.Now(), len(s.Nodes())
		// Targets of before a loss of power have samples for five minutes more.
		fresh := func(series, condition string) string {
			return fmt.Sprintf("count(timestamp(%[1]s) > %[2]d and %[1]s %[3]s)", series, began.Unix(), condition)
		}
		for _, q := range []struct {
			expression string
			want       int
		}{
			{fresh(`up{job="apiserver"}`, "== 1"), nodes},
			{fresh(`up{job="kubelet"}`, "== 1"), nodes},
			{fresh(`up{job="cadvisor"}`, "== 1"), nodes},
			{fresh(`up{job="nodes"}`, "== 1"), nodes},
			{fresh(`kubelet_running_pods`, "> 0"), nodes},
			{fresh(`node_memory_MemAvailable_bytes`, "> 0"), nodes},
			{`count(sum by (instance) (rate(apiserver_request_total[1m])) > 0)`, nodes},
			{`count(rate(container_cpu_usage_seconds_total{namespace="monitoring",container="prometheus"}[1m]) > 0)`, 1},
		} {
			if err := s.until(ctx, q.expression, func(ctx context.Context) error {
				got, err := s.promql(ctx, "monitoring/services/prometheus:web", q.expression)
				if err == nil && got != float64(q.want) {
					err = fmt.Errorf("it is %v, not %d", got, q.want)
				}
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	},
}

// promql asks a Prometheus for one number, through the API server's proxy.
func (s *site) promql(ctx context.Context, service, expression string) (float64, error) {
	ctx, cancel := clustertest.TryOnce(ctx)
	defer cancel()
	out, err := s.kubectl(ctx, "get", "--raw", "/api/v1/namespaces/"+service+"/proxy/api/v1/query?query="+url.QueryEscape(expression))
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return 0, err
	}
	if len(answer.Data.Result) != 1 {
		return 0, fmt.Errorf("there are %d series: %s", len(answer.Data.Result), out)
	}
	return strconv.ParseFloat(fmt.Sprint(answer.Data.Result[0].Value[1]), 64)
}

// prometheusManifests want the addresses of API servers and kubelets.
const prometheusManifests = `
apiVersion: v1
kind: Namespace
metadata: {name: monitoring}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus, namespace: monitoring}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: debian-prometheus}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {nonResourceURLs: [/metrics], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: debian-prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: debian-prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: monitoring}]
---
apiVersion: v1
kind: Service
metadata: {name: nodes, namespace: monitoring}
spec: {clusterIP: None, selector: {app: node-exporter}, ports: [{name: metrics, port: 9100}]}
---
apiVersion: v1
kind: Service
metadata: {name: prometheus, namespace: monitoring}
spec: {selector: {app: prometheus}, ports: [{name: web, port: 9090}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: prometheus, namespace: monitoring}
data:
  prometheus.yml: |
    global: {scrape_interval: 5s}
    scrape_configs:
    - job_name: apiserver
      scheme: https
      authorization: &token {credentials_file: /var/run/secrets/kubernetes.io/serviceaccount/token}
      tls_config: &ca {ca_file: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}
      static_configs: [{targets: [%[1]s]}]
    - job_name: kubelet
      scheme: https
      authorization: *token
      tls_config: *ca
      static_configs: &kubelets [{targets: [%[2]s]}]
    - job_name: cadvisor
      scheme: https
      metrics_path: /metrics/cadvisor
      authorization: *token
      tls_config: *ca
      static_configs: *kubelets
    - job_name: nodes
      dns_sd_configs: [{names: [_metrics._tcp.nodes.monitoring.svc.cluster.local], type: SRV, refresh_interval: 5s}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: node-exporter, namespace: monitoring}
spec:
  selector: {matchLabels: {app: node-exporter}}
  template:
    metadata: {labels: {app: node-exporter}}
    spec:
      hostPID: true
      terminationGracePeriodSeconds: 1
      containers:
      - name: node-exporter
        image: ` + nodeExporterImage + `
        command: [prometheus-node-exporter, --path.rootfs=/host]
        volumeMounts: [{name: host, mountPath: /host, readOnly: true}]
      volumes: [{name: host, hostPath: {path: /}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: prometheus, namespace: monitoring}
spec:
  serviceName: prometheus
  selector: {matchLabels: {app: prometheus}}
  template:
    metadata: {labels: {app: prometheus}}
    spec:
      serviceAccountName: prometheus
      securityContext: {runAsUser: 65534, runAsGroup: 65534, fsGroup: 65534}
      containers:
      - name: prometheus
        image: ` + prometheusImage + `
        command: [prometheus, --config.file=/config/prometheus.yml, --storage.tsdb.path=/data]
        readinessProbe: {httpGet: {path: /-/ready, port: 9090}}
        volumeMounts: [{name: data, mountPath: /data}, {name: config, mountPath: /config}]
      volumes: [{name: config, configMap: {name: prometheus}}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 500Mi}}}
`
