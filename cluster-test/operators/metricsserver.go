package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

var metricsServer = program{
	name: "metrics-server", module: "sigs.k8s.io/metrics-server", version: "v0.9.0",
	scenario: "takes metrics.k8s.io over from Barque; it has figures of each node that are younger than the round",
	images: []workshop.Image{
		workshop.Simple("registry.k8s.io/metrics-server/metrics-server:v0.9.0", "/metrics-server", "cmd/metrics-server",
			"65534"),
	},
	namespaces: []string{"kube-system"},
	install: func(ctx context.Context, s *site) error {
		return s.kustomized(ctx, "manifests/overlays/release")
	},
	fact: func(ctx context.Context, s *site, _ round) error {
		began := time.Now()
		if err := s.wants(ctx, "metrics-server True", "get", "apiservice", "v1beta1.metrics.k8s.io",
			"-o", `jsonpath={.spec.service.name} {.status.conditions[?(@.type=="Available")].status}`); err != nil {
			return err
		}
		return s.until(ctx, "figures of all nodes", func(ctx context.Context) error {
			out, err := s.kubectl(ctx, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes")
			if err != nil {
				return err
			}
			var list struct {
				Items []struct {
					Metadata  struct{ Name string }
					Timestamp time.Time
				}
			}
			if err := json.Unmarshal([]byte(out), &list); err != nil {
				return err
			}
			fresh := map[string]bool{}
			for _, i := range list.Items {
				fresh[i.Metadata.Name] = i.Timestamp.After(began)
			}
			for _, n := range s.Nodes() {
				if !fresh[n] {
					return fmt.Errorf("there are none of %s since %s: %s", n, began.Format(time.TimeOnly), out)
				}
			}
			return nil
		})
	},
}
