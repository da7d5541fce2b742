package main

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const cnpgPostgres = "ghcr.io/cloudnative-pg/postgresql"

var cloudNativePG = program{
	name: "CloudNativePG", module: "github.com/cloudnative-pg/cloudnative-pg", version: "v1.29.0",
	scenario: "a cluster of three PostgreSQL (Debian's) takes a row on the primary, and both standbys have all rows of all rounds",
	images: []workshop.Image{
		{
			Name:     "ghcr.io/cloudnative-pg/cloudnative-pg:1.29.0",
			Binaries: map[string]workshop.Source{"/operator/manager_amd64": {Pkg: "cmd/manager"}},
			Links:    map[string]string{"/manager": "operator/manager_amd64"},
			Config:   v1.Config{Entrypoint: []string{"/manager"}, User: "65532:65532", WorkingDir: "/"},
		},
		workshop.Postgres(cnpgPostgres+":debian", 26, images.Foreign{}),
	},
	namespaces: []string{"cnpg-system", "databases"},
	install: func(ctx context.Context, s *site) error {
		if err := s.shipped(ctx, "releases/cnpg-1.29.0.yaml"); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, "rollout", "status", "-n", "cnpg-system", "deployment/cnpg-controller-manager",
			"--timeout=3m"); err != nil {
			return err
		}
		version, err := images.PostgresVersion(ctx)
		if err != nil {
			return err
		}
		if err := s.admitted(ctx, namespaceNamed("databases"), fmt.Sprintf(`
apiVersion: postgresql.cnpg.io/v1
kind: ImageCatalog
metadata: {name: debian, namespace: databases}
spec: {images: [{major: %[1]s, image: "%[2]s:debian"}]}
---
apiVersion: postgresql.cnpg.io/v1
kind: Cluster
metadata: {name: pg, namespace: databases}
spec:
  instances: 3
  imageCatalogRef: {apiGroup: postgresql.cnpg.io, kind: ImageCatalog, name: debian, major: %[1]s}
  storage: {size: 1Gi}
  postgresql: {parameters: {shared_buffers: 16MB, jit: "off"}}
`, version, cnpgPostgres)); err != nil {
			return err
		}
		if err := s.wants(ctx, "3", "get", "cluster.postgresql.cnpg.io", "-n", "databases", "pg", "-o",
			"jsonpath={.status.readyInstances}"); err != nil {
			return err
		}
		return s.until(ctx, "the table", func(ctx context.Context) error {
			_, err := s.psql(ctx, "primary", makeRounds)
			return err
		})
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "the row", func(ctx context.Context) error {
			_, err := s.psql(ctx, "primary", r.row())
			return err
		}); err != nil {
			return err
		}
		return s.until(ctx, "the rows on the standbys", func(ctx context.Context) error {
			has, err := s.psql(ctx, "replica", listRounds)
			if err != nil {
				return err
			}
			if len(has) != 2 {
				return fmt.Errorf("there are %d standbys", len(has))
			}
			for pod, rows := range has {
				if err := r.recorded(pod, rows); err != nil {
					return err
				}
			}
			return nil
		})
	},
}

// psql runs a statement in all instances of a role, and returns the output of each.
func (s *site) psql(ctx context.Context, role, statement string) (map[string]string, error) {
	pods, err := s.Client.CoreV1().Pods("databases").List(ctx,
		metav1.ListOptions{LabelSelector: "cnpg.io/instanceRole=" + role})
	if err != nil {
		return nil, err
	}
	if len(pods.Items) == 0 {
		return nil, errors.New("there is no " + role)
	}
	out := map[string]string{}
	for _, p := range pods.Items {
		if out[p.Name], err = s.kubectl(ctx, "exec", "-n", "databases", p.Name, "-c", "postgres", "--", "psql", "-Atqc",
			statement); err != nil {
			return nil, err
		}
	}
	return out, nil
}
