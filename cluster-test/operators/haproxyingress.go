package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const haproxyNamespace = "ingress-controller" // as the authors have it

// haproxyBeside are the objects that the authors' page on the deployment asks for: a default
// backend, settings, and a Service. Their example of RBAC is older than the controller's use
// of EndpointSlices.
//
//go:embed manifests/haproxy-ingress.yaml
var haproxyBeside string

// haproxyIngress is the authors' controller with Debian's HAProxy. Their Dockerfile takes it,
// and the programs of its scripts, from another distribution. It runs as root: layers have no
// capabilities of files, with which theirs binds its ports, and Debian's configuration belongs
// to root.
var haproxyIngress = program{
	name: "haproxy-ingress", module: "github.com/jcmoraisjr/haproxy-ingress", version: "v0.16.1",
	scenario: "a new Ingress leads its host to a Deployment, and other hosts go on to the default backend, through a NodePort",
	images: []workshop.Image{{
		Name: "quay.io/jcmoraisjr/haproxy-ingress:latest", // the manifest has no tag
		Binaries: map[string]workshop.Source{
			"/haproxy-ingress-controller": {Pkg: "pkg",
				Ldflags: "-X github.com/jcmoraisjr/haproxy-ingress/pkg/version.RELEASE=v0.16.1"}},
		Files: map[string]string{"/etc/lua": "rootfs/etc/lua", "/etc/templates": "rootfs/etc/templates"},
		Scripts: map[string]string{
			"/start.sh": "rootfs/start.sh", "/haproxy-reload.sh": "rootfs/haproxy-reload.sh",
			"/haproxy-shutdown.sh": "rootfs/haproxy-shutdown.sh",
		},
		Foreign: func(context.Context) (images.Foreign, error) {
			return images.Foreign{
				Shell:    true,
				Packages: []string{"haproxy", "socat", "openssl", "lua5.3", "lua-json", "lua-lpeg", "dumb-init"},
				Users:    []string{"haproxy:x:99:99:HAProxy:/var/lib/haproxy:/bin/sh"},
				Dirs:     []string{"etc/haproxy", "var/lib/haproxy", "var/run/haproxy"},
				Config:   v1.Config{Entrypoint: []string{"/usr/bin/dumb-init", "--", "/start.sh"}},
			}, nil
		},
	}},
	namespaces: []string{haproxyNamespace},
	install: func(ctx context.Context, s *site) error {
		if err := s.shipped(ctx, "examples/rbac/ingress-controller-rbac.yml"); err != nil {
			return err
		}
		if err := s.apply(ctx, haproxyBeside, webServers(haproxyNamespace, "web", 2)); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, "apply", "-n", haproxyNamespace, "-f",
			s.dir+"/examples/deployment/haproxy-ingress.yaml"); err != nil {
			return err
		}
		// Their page on RBAC has this one change.
		_, err := s.kubectl(ctx, "set", "serviceaccount", "-n", haproxyNamespace, "deployment/haproxy-ingress",
			"ingress-controller")
		return err
	},
	fact: func(ctx context.Context, s *site, r round) error {
		host := string(r) + ".example"
		if err := s.haproxyAnswers(ctx, "other.example", "default backend"); err != nil {
			return err
		}
		if err := s.apply(ctx, fmt.Sprintf(haproxyRoute, host, r)); err != nil {
			return err
		}
		for _, past := range r.past() {
			if err := s.haproxyAnswers(ctx, past+".example", webPage); err != nil {
				return err
			}
		}
		return s.haproxyAnswers(ctx, "other.example", "default backend")
	},
}

// haproxyAnswers waits until a node answers a request for a host with a text. A node may be dead.
func (s *site) haproxyAnswers(ctx context.Context, host, text string) error {
	return s.until(ctx, "the page of "+host, func(ctx context.Context) error {
		service, err := s.Client.CoreV1().Services(haproxyNamespace).Get(ctx, "haproxy-ingress", metav1.GetOptions{})
		if err != nil {
			return err
		}
		nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		failed := errors.New("no node has an address")
		for _, n := range nodes.Items {
			for _, a := range n.Status.Addresses {
				if a.Type != corev1.NodeInternalIP {
					continue
				}
				if failed = reads(ctx, fmt.Sprintf("http://%s:%d/", a.Address, service.Spec.Ports[0].NodePort), host,
					text); failed == nil {
					return nil
				}
			}
		}
		return failed
	})
}

// haproxyRoute is an Ingress, by its host and its name.
const haproxyRoute = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %[2]s, namespace: ` + haproxyNamespace + `}
spec:
  ingressClassName: haproxy
  rules:
  - host: %[1]s
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`
