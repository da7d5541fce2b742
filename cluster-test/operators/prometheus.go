package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

// prometheusManifests want the addresses of API servers and kubelets.
//
//go:embed manifests/prometheus.yaml
var prometheusManifests string

// prometheus is Debian's, which has no discovery of Kubernetes: it finds the exporters by the DNS.
var prometheus = program{
	name: "Prometheus, node exporter", version: "2.42.0, 1.5.0 (Debian 12)",
	scenario: "API servers, kubelets, their cAdvisor and the exporter of each node have samples that are younger than the round, and rates",
	images: []workshop.Image{
		workshop.Debian("docker.io/library/prometheus:debian",
			images.Foreign{Packages: []string{"prometheus"}, Config: v1.Config{User: "65534:65534"}}),
		workshop.Debian("docker.io/library/prometheus-node-exporter:debian",
			images.Foreign{Packages: []string{"prometheus-node-exporter"}, Config: v1.Config{User: "65534:65534"}}),
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
		return s.apply(ctx, strings.NewReplacer("API_SERVERS", api, "KUBELETS", kubelets).Replace(prometheusManifests))
	},
	fact: func(ctx context.Context, s *site, _ round) error {
		began, nodes := time.Now(), len(s.Nodes())
		// Targets of before a loss of power have samples for five minutes more.
		fresh := func(series, condition string) string {
			return fmt.Sprintf("count(timestamp(%[1]s) > %[2]d and %[1]s %[3]s)", series, began.Unix(), condition)
		}
		return s.figures(ctx, "monitoring", "prometheus:web", []figure{
			{fresh(`up{job="apiserver"}`, "== 1"), nodes},
			{fresh(`up{job="kubelet"}`, "== 1"), nodes},
			{fresh(`up{job="cadvisor"}`, "== 1"), nodes},
			{fresh(`up{job="nodes"}`, "== 1"), nodes},
			{fresh(`kubelet_running_pods`, "> 0"), nodes},
			{fresh(`node_memory_MemAvailable_bytes`, "> 0"), nodes},
			{`count(sum by (instance) (rate(apiserver_request_total[1m])) > 0)`, nodes},
			{`count(rate(container_cpu_usage_seconds_total{namespace="monitoring",container="prometheus"}[1m]) > 0)`,
				1},
		})
	},
}

// figure is a number that an expression of PromQL is to have.
type figure struct {
	expression string
	want       int
}

// figures waits until a Prometheus has all of them.
func (s *site) figures(ctx context.Context, namespace, service string, figures []figure) error {
	for _, f := range figures {
		if err := s.until(ctx, f.expression, func(ctx context.Context) error {
			got, err := s.promql(ctx, namespace, service, f.expression)
			if err == nil && got != float64(f.want) {
				err = fmt.Errorf("it is %v, not %d", got, f.want)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// promql asks a Prometheus for one number.
func (s *site) promql(ctx context.Context, namespace, service, expression string) (float64, error) {
	out, err := s.proxied(ctx, namespace, service, "api/v1/query?query="+url.QueryEscape(expression))
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
