package main

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

// descheduler evicts pods of other programs, too, so that it comes last.
var descheduler = program{
	name: "descheduler", module: "sigs.k8s.io/descheduler", version: "v0.36.0",
	scenario: "three replicas that were crowded on one node are spread over others by its Job",
	images: []workshop.Image{{
		Name:     "registry.k8s.io/descheduler/descheduler:v0.36.0",
		Binaries: map[string]workshop.Source{"/bin/descheduler": {Pkg: "cmd/descheduler"}},
		Config:   v1.Config{User: "1000"},
	}},
	namespaces: []string{"crowded"},
	install: func(ctx context.Context, s *site) error {
		return s.apply(ctx, namespaceNamed("crowded"), webServers("crowded", "web", 3))
	},
	fact: func(ctx context.Context, s *site, _ round) error {
		if err := crowd(ctx, s, s.Nodes()); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, "delete", "job", "-n", "kube-system", "descheduler-job",
			"--ignore-not-found"); err != nil {
			return err
		}
		if err := s.kustomized(ctx, "kubernetes/job"); err != nil {
			return err
		}
		if err := s.wants(ctx, "1", "get", "job", "-n", "kube-system", "descheduler-job", "-o",
			"jsonpath={.status.succeeded}"); err != nil {
			return err
		}
		return crowded(ctx, s, "the replicas on several nodes", func(on map[string]int) bool { return len(on) > 1 })
	},
}

// crowd brings all replicas to the first node.
func crowd(ctx context.Context, s *site, nodes []string) (err error) {
	defer func() { // other programs need the nodes, whatever has happened
		_, uncordonErr := s.kubectl(ctx, append([]string{"uncordon"}, nodes...)...)
		err = errors.Join(err, uncordonErr)
	}()
	if _, err := s.kubectl(ctx, append([]string{"cordon"}, nodes[1:]...)...); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "delete", "pods", "-n", "crowded", "--all"); err != nil {
		return err
	}
	return crowded(ctx, s, "all replicas on one node", func(on map[string]int) bool { return on[nodes[0]] == 3 })
}

// crowded waits until the Ready replicas are as wanted, by their number on each node.
func crowded(ctx context.Context, s *site, what string, want func(on map[string]int) bool) error {
	return s.until(ctx, what, func(ctx context.Context) error {
		pods, err := s.Client.CoreV1().Pods("crowded").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		on := map[string]int{}
		for _, p := range pods.Items {
			if err := readySince(&p, start); err != nil {
				return err
			}
			on[p.Spec.NodeName]++
		}
		if !want(on) {
			return fmt.Errorf("they are on %v", on)
		}
		return nil
	})
}
