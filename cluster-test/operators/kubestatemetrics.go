package main

import (
	"context"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

var kubeStateMetrics = program{
	name: "kube-state-metrics", module: "k8s.io/kube-state-metrics/v2", version: "v2.18.0",
	scenario: "it shows a new ConfigMap, its own Deployment and all nodes, read through the API server's proxy",
	images: []workshop.Image{{
		Name:     "registry.k8s.io/kube-state-metrics/kube-state-metrics:v2.18.0",
		Binaries: map[string]workshop.Source{"/kube-state-metrics": {Pkg: "."}},
		Config: v1.Config{Entrypoint: []string{"/kube-state-metrics", "--port=8080", "--telemetry-port=8081"},
			User: "nobody"},
	}},
	namespaces: []string{"kube-system"},
	install: func(ctx context.Context, s *site) error {
		return s.kustomized(ctx, "examples/standard")
	},
	fact: func(ctx context.Context, s *site, r round) error {
		name := "seen-when-" + string(r)
		if err := s.apply(ctx,
			fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: default}",
				name)); err != nil {
			return err
		}
		want := []string{
			fmt.Sprintf(`kube_configmap_info{namespace="default",configmap="%s"} 1`, name),
			`kube_deployment_status_replicas_ready{namespace="kube-system",deployment="kube-state-metrics"} 1`,
		}
		for _, n := range s.Nodes() {
			want = append(want,
				fmt.Sprintf(`kube_node_status_condition{node="%s",condition="Ready",status="true"} 1`, n))
		}
		return s.until(ctx, "the figures", func(ctx context.Context) error {
			out, err := s.proxied(ctx, "kube-system", "kube-state-metrics:http-metrics", "metrics")
			if err != nil {
				return err
			}
			for _, line := range want {
				if !strings.Contains(out, line) {
					return fmt.Errorf("there is no %s", line)
				}
			}
			return nil
		})
	},
}
