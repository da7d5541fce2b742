package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

var metalLB = program{
	name: "MetalLB", module: "go.universe.tf/metallb", version: "v0.16.1",
	scenario: "a Service gets an address of the pool, the speaker announces it, and a client beside the cluster reads a page there",
	images: []workshop.Image{
		workshop.Simple("quay.io/metallb/controller:v0.16.1", "/controller", "controller", ""),
		workshop.Simple("quay.io/metallb/speaker:v0.16.1", "/speaker", "speaker", ""),
	},
	namespaces: []string{"metallb-system"},
	install: func(ctx context.Context, s *site) error {
		return s.shipped(ctx, "config/manifests/metallb-native.yaml")
	},
	fact: func(ctx context.Context, s *site, r round) error {
		pool, err := addressesBeside(ctx, s)
		if err != nil {
			return err
		}
		if err := s.admitted(ctx, fmt.Sprintf(`
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: beside, namespace: metallb-system}
spec: {addresses: ["%s"]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: beside, namespace: metallb-system}
spec: {ipAddressPools: [beside]}
`, pool)); err != nil {
			return err
		}
		if err := s.apply(ctx, namespaceNamed("balanced"), webServers("balanced", "web", 2), fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: balanced}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}
`, r)); err != nil {
			return err
		}
		return s.until(ctx, "the page at the Service's address", func(ctx context.Context) error {
			service, err := s.Client.CoreV1().Services("balanced").Get(ctx, string(r), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(service.Status.LoadBalancer.Ingress) == 0 {
				return errors.New("the Service has no address")
			}
			return reads(ctx, "http://"+service.Status.LoadBalancer.Ingress[0].IP+"/", "", webPage)
		})
	},
}

// addressesBeside are addresses of the nodes' network that no node has.
func addressesBeside(ctx context.Context, s *site) (string, error) {
	node, err := s.Client.CoreV1().Nodes().Get(ctx, s.Nodes()[0], metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil && ip.Is4() {
			b := ip.As4()
			return fmt.Sprintf("%d.%d.%d.200-%[1]d.%[2]d.%[3]d.220", b[0], b[1], b[2]), nil
		}
	}
	return "", errors.New("the node has no IPv4 address")
}

// reads is nil when the page at a URL has a text. Without a host the URL's own is asked for.
func reads(ctx context.Context, url, host, text string) error {
	ctx, cancel := clustertest.TryOnce(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Host = host
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && !strings.Contains(string(body), text) {
		err = fmt.Errorf("%s answers %s: %.200s", url, response.Status, body)
	}
	return err
}
