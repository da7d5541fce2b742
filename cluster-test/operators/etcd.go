package main

import (
	"context"
	_ "embed"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

//go:embed manifests/etcd.yaml
var etcdManifests string

// etcd is Debian's, which has no manifests: those here are after its documentation.
var etcd = program{
	name: "etcd", version: "3.4.23 (Debian 12)",
	scenario: "three members of a StatefulSet find each other by name; a key that is written through the Service is on each member, with those of all rounds",
	images: []workshop.Image{workshop.Debian("docker.io/library/etcd:debian", images.Foreign{
		Packages: []string{"etcd-server", "etcd-client"},
		Config:   v1.Config{User: "65532:65532", Env: []string{"ETCDCTL_API=3"}},
	})},
	namespaces: []string{"etcd"},
	install: func(ctx context.Context, s *site) error {
		return s.apply(ctx, etcdManifests)
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.succeeds(ctx,
			etcdctl(0, "--endpoints=etcd-client:2379", "put", "rounds/"+string(r), string(r))...); err != nil {
			return err
		}
		return s.until(ctx, "the keys on each member", func(ctx context.Context) error {
			for member := range 3 {
				keys, err := s.kubectl(ctx, etcdctl(member, "get", "--prefix", "--print-value-only", "rounds/")...)
				if err == nil {
					err = r.recorded(fmt.Sprint("etcd-", member), keys)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	},
}

// etcdctl are the arguments of kubectl that run etcdctl in a member's pod.
func etcdctl(member int, args ...string) []string {
	return append([]string{"exec", "-n", "etcd", fmt.Sprint("etcd-", member), "--", "etcdctl"}, args...)
}
