package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

//go:embed manifests/patroni.yaml
var patroniManifests string

// patroni is Debian's, which has no manifests: those here are after its documentation.
var patroni = program{
	name: "Patroni", version: "3.0.2 (Debian 12)",
	scenario: "three PostgreSQL elect a primary by an Endpoints object; it stays primary through the leader's death, and a row " +
		"that was written through the selectorless Service is on all three",
	images: []workshop.Image{workshop.Postgres("docker.io/library/patroni:debian", 999, images.Foreign{
		Packages: []string{"patroni", "python3", "python3-minimal"},
		Config:   v1.Config{Env: []string{"PYTHONDONTWRITEBYTECODE=1"}},
	})},
	namespaces: []string{"patroni"},
	install: func(ctx context.Context, s *site) error {
		if err := s.apply(ctx, patroniManifests); err != nil {
			return err
		}
		return s.succeeds(ctx, patroniPSQL(0, "patroni", makeRounds)...)
	},
	begin: func(ctx context.Context, s *site, _ round) (err error) {
		s.noted, err = s.patroniPrimary(ctx)
		return err
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.succeeds(ctx, patroniPSQL(0, "patroni", r.row())...); err != nil {
			return err
		}
		if err := s.until(ctx, "the rows on all", func(ctx context.Context) error {
			for pod := range 3 {
				rows, err := s.kubectl(ctx, patroniPSQL(pod, "/tmp", listRounds)...)
				if err == nil {
					err = r.recorded(fmt.Sprint("patroni-", pod), rows)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		// Machines that lost power may elect another one.
		if primary, err := s.patroniPrimary(ctx); err != nil || r != restarted && primary != s.noted {
			return errors.Join(err, fmt.Errorf("the primary was %s, and is %s", s.noted, primary))
		}
		return nil
	},
}

// patroniPSQL are the arguments of kubectl that run a statement from a pod: on its own server, by
// the socket in /tmp, or through the Service.
func patroniPSQL(pod int, host, statement string) []string {
	return []string{"exec", "-n", "patroni", fmt.Sprint("patroni-", pod), "--", "psql", "-h", host, "-U", "postgres",
		"-Atqc", statement}
}

// patroniPrimary is the pod that Patroni has labelled.
func (s *site) patroniPrimary(ctx context.Context) (name string, err error) {
	return name, s.until(ctx, "one primary", func(ctx context.Context) error {
		pods, err := s.Client.CoreV1().Pods("patroni").List(ctx, metav1.ListOptions{LabelSelector: "role=master"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		name = pods.Items[0].Name
		return nil
	})
}
