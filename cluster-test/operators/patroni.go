package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const patroniImage = "docker.io/library/patroni:debian"

//go:embed manifests/patroni.yaml
var patroniManifests string

// patroni is Debian's, which has no manifests: those here are after its documentation.
var patroni = program{
	name: "Patroni", version: "3.0.2 (Debian 12)",
	scenario: "three PostgreSQL elect a primary by an Endpoints object; it stays primary through the leader's death, and a row " +
		"that was written through the selectorless Service is on all three",
	images:     []workshop.Image{{Name: patroniImage, Foreign: debianPatroni}},
	namespaces: []string{"patroni"},
	install: func(ctx context.Context, s *site) error {
		if err := s.apply(ctx, patroniManifests); err != nil {
			return err
		}
		return s.until(ctx, "the table", func(ctx context.Context) error {
			_, err := s.patroniWrite(ctx, "create table if not exists rounds (name text primary key)")
			return err
		})
	},
	begin: func(ctx context.Context, s *site, _ round) (err error) {
		s.noted, err = s.patroniPrimary(ctx)
		return err
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "the row", func(ctx context.Context) error {
			_, err := s.patroniWrite(ctx, fmt.Sprintf("insert into rounds values ('%s') on conflict do nothing", r))
			return err
		}); err != nil {
			return err
		}
		if err := s.until(ctx, "the rows on all", func(ctx context.Context) error {
			for _, pod := range []string{"patroni-0", "patroni-1", "patroni-2"} {
				rows, err := s.kubectl(ctx, "exec", "-n", "patroni", pod, "--", "psql", "-h", "/tmp", "-U", "postgres", "-Atqc", "select name from rounds order by name")
				if err != nil {
					return err
				}
				if want := strings.Join(r.past(), "\n"); rows != want {
					return fmt.Errorf("%s has %q, want %q", pod, rows, want)
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

// patroniWrite runs a statement through the Service.
func (s *site) patroniWrite(ctx context.Context, statement string) (string, error) {
	return s.kubectl(ctx, "exec", "-n", "patroni", "patroni-0", "--", "psql", "-h", "patroni", "-U", "postgres", "-Atqc", statement)
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

// debianPatroni has PostgreSQL's server and programs, and Patroni, which finds them on the PATH.
func debianPatroni(ctx context.Context) (images.Foreign, error) {
	version, err := images.PostgresVersion(ctx)
	if err != nil {
		return images.Foreign{}, err
	}
	f := images.Foreign{
		Shell: true, Packages: []string{"postgresql-" + version, "postgresql-client-" + version, "patroni", "python3", "python3-minimal"},
		Users:  []string{"postgres:x:999:999:PostgreSQL:/var/lib/postgresql:/bin/sh"},
		Dirs:   []string{"var/lib/postgresql", "run/postgresql", "var/run/postgresql"},
		Links:  map[string]string{},
		Config: v1.Config{User: "999:999", Env: []string{"PYTHONDONTWRITEBYTECODE=1"}},
	}
	for _, program := range []string{
		"initdb", "pg_basebackup", "pg_controldata", "pg_ctl", "pg_isready", "pg_rewind", "postgres", "psql",
	} {
		f.Links[path.Join("usr/bin", program)] = "../lib/postgresql/" + version + "/bin/" + program
	}
	return f, nil
}
