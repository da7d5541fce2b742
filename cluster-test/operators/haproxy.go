package main

import (
	"context"
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

//go:embed manifests/haproxy.yaml
var haproxyManifests string

// haproxy is Debian's. It finds its servers as its documentation has it, by the DNS.
var haproxy = program{
	name: "HAProxy", version: "2.6.12 (Debian 12)",
	scenario: "it asks the DNS for the SRV records of a headless Service; its servers are the pods of a Deployment that grows and shrinks, and answer",
	images: []workshop.Image{
		workshop.Debian("docker.io/library/haproxy:debian",
			images.Foreign{Packages: []string{"haproxy"}, Config: v1.Config{User: "65534:65534"}}),
	},
	namespaces: []string{"proxied"},
	install: func(ctx context.Context, s *site) error {
		return s.apply(ctx, haproxyManifests, webServers("proxied", "web", 1))
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.succeeds(ctx, "scale", "-n", "proxied", "deployment/web",
			fmt.Sprint("--replicas=", r.replicas())); err != nil {
			return err
		}
		return s.until(ctx, "its servers", func(ctx context.Context) error {
			pods, err := s.Client.CoreV1().Pods("proxied").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				return err
			}
			var want []string
			for _, p := range pods.Items {
				if clustertest.Ready(&p) && p.DeletionTimestamp == nil {
					want = append(want, p.Status.PodIP+":80")
				}
			}
			got, err := haproxyUp(ctx, s)
			if err != nil {
				return err
			}
			slices.Sort(want)
			slices.Sort(got)
			if len(want) != r.replicas() || !slices.Equal(got, want) {
				return fmt.Errorf("it has %v, the pods are %v", got, want)
			}
			page, err := s.proxied(ctx, "proxied", "haproxy:http", "")
			if err == nil && !strings.Contains(page, webPage) {
				err = fmt.Errorf("it answers %.200s", page)
			}
			return err
		})
	},
}

// haproxyUp returns the addresses of the servers that are up, by its statistics.
func haproxyUp(ctx context.Context, s *site) ([]string, error) {
	text, err := s.proxied(ctx, "proxied", "haproxy:stats", ";csv")
	if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(text, "# "))).ReadAll()
	if err != nil || len(rows) == 0 {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	column := func(row []string, name string) string {
		if i := slices.Index(rows[0], name); i >= 0 && i < len(row) {
			return row[i]
		}
		return ""
	}
	var up []string
	for _, row := range rows[1:] {
		if column(row, "pxname") == "web" && column(row, "status") == "UP" && column(row, "addr") != "" {
			up = append(up, column(row, "addr"))
		}
	}
	return up, nil
}
