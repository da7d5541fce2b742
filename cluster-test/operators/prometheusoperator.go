package main

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

// monitors are for the targets that kube-prometheus has in any cluster, with the kubelet's own
// labels as there, selected as the example's Prometheus has it.
//
//go:embed manifests/prometheus-operator.yaml
var monitors string

// prometheusOperator runs the Prometheus that its authors name, with the objects of their example.
var prometheusOperator = program{
	name: "prometheus-operator, Prometheus v3.13.1", module: "github.com/prometheus-operator/prometheus-operator",
	version:  "v0.93.0",
	scenario: "ServiceMonitors of the API servers, the kubelets, their cAdvisor and the operator have fresh samples of all targets in two Prometheus",
	images: []workshop.Image{
		workshop.Shelled(
			workshop.Simple("quay.io/prometheus-operator/prometheus-operator:v0.93.0", "/bin/operator", "cmd/operator",
				"65534")),
		workshop.Shelled(
			workshop.Simple("quay.io/prometheus-operator/prometheus-config-reloader:v0.93.0",
				"/bin/prometheus-config-reloader", "cmd/prometheus-config-reloader", "nobody")),
		{
			Name: "quay.io/prometheus/prometheus:v3.13.1", Shell: true,
			Binaries: map[string]workshop.Source{"/bin/prometheus": {
				Pkg: "cmd/prometheus", Module: "github.com/prometheus/prometheus", Version: "v0.313.1",
				// Tags of its README, for a build without the discoveries of clouds. Its user
				// interface, which npm makes, is left out.
				Tags: "netgo,remove_all_sd,enable_kubernetes_sd",
			}},
			Config: v1.Config{Entrypoint: []string{"/bin/prometheus"}, User: "nobody", WorkingDir: "/prometheus"},
		},
	},
	namespaces: []string{"default"},
	install: func(ctx context.Context, s *site) error {
		if err := s.shipped(ctx, "bundle.yaml"); err != nil {
			return err
		}
		for _, crd := range []string{"prometheuses", "servicemonitors"} {
			if _, err := s.kubectl(ctx, "wait", "--for=condition=Established",
				"crd/"+crd+".monitoring.coreos.com"); err != nil {
				return err
			}
		}
		if err := s.shipped(ctx, "example/rbac/prometheus"); err != nil {
			return err
		}
		if err := s.apply(ctx, monitors); err != nil {
			return err
		}
		return s.wants(ctx, "2", "get", "prometheus", "prometheus", "-o", "jsonpath={.status.availableReplicas}")
	},
	fact: func(ctx context.Context, s *site, r round) error {
		began := time.Now()
		if err := s.apply(ctx, fmt.Sprintf(`
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: operator-%[1]s, namespace: default, labels: {team: frontend}}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: prometheus-operator}}
  endpoints: [{port: http, interval: 5s, relabelings: [{targetLabel: round, replacement: %[1]s}]}]
`, r)); err != nil {
			return err
		}
		nodes := len(s.Nodes())
		return s.figures(ctx, "default", "prometheus-operated:web", []figure{
			{fmt.Sprintf(`count(up{round="%s"} == 1)`, r), 1},
			{`count(up{job="apiserver"} == 1)`, nodes},
			{`count(up{job="kubelet",metrics_path="/metrics"} == 1)`, nodes},
			{`count(up{job="kubelet",metrics_path="/metrics/cadvisor"} == 1)`, nodes},
			{fmt.Sprintf(`min(timestamp(up{job=~"apiserver|kubelet"} == 1)) > bool %d`, began.Unix()), 1},
			{`count(sum by (instance) (rate(apiserver_request_total[1m])) > 0)`, nodes},
			{`count(kubelet_running_pods)`, nodes},
			{`count(rate(container_cpu_usage_seconds_total{namespace="default",container="prometheus"}[1m]) > 0)`, 2},
		})
	},
}
