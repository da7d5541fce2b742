package main

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const etcdImage = "docker.io/library/etcd:debian"

//go:embed manifests/etcd.yaml
var etcdManifests string

// etcd is Debian's, which has no manifests: those here are after its documentation.
var etcd = program{
	name: "etcd", version: "3.4.23 (Debian 12)",
	scenario: "three members of a StatefulSet find each other by name; a key that is written through the Service is on each member, with those of all rounds",
	images: []workshop.Image{{Name: etcdImage, Foreign: func(context.Context) (images.Foreign, error) {
		return images.Foreign{Packages: []string{"etcd-server", "etcd-client"}, Config: v1.Config{User: "65532:65532", Env: []string{"ETCDCTL_API=3"}}}, nil
	}}},
	namespaces: []string{"etcd"},
	install: func(ctx context.Context, s *site) error {
		return s.apply(ctx, etcdManifests)
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "the key", func(ctx context.Context) error {
			_, err := s.etcdctl(ctx, 0, "--endpoints=etcd-client:2379", "put", "rounds/"+string(r), string(r))
			return err
		}); err != nil {
			return err
		}
		return s.until(ctx, "the keys on each member", func(ctx context.Context) error {
			for member := range 3 {
				keys, err := s.etcdctl(ctx, member, "get", "--prefix", "--print-value-only", "rounds/")
				if err != nil {
					return err
				}
				if want := strings.Join(r.past(), "\n"); keys != want {
					return fmt.Errorf("etcd-%d has %q, want %q", member, keys, want)
				}
			}
			return nil
		})
	},
}

// etcdctl runs etcdctl in a member's pod.
func (s *site) etcdctl(ctx context.Context, member int, args ...string) (string, error) {
	return s.kubectl(ctx, append([]string{"exec", "-n", "etcd", fmt.Sprint("etcd-", member), "--", "etcdctl"}, args...)...)
}
