package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/barque/barque/cluster-test/images"
)

var kubectl = program{
	name: "kubectl", version: "v1.35.2",
	scenario: "two minor versions older than the API: it rolls a Deployment out, drains a node of it, and reads back by `exec` a file that `cp` has written",
	npm:      clients, namespaces: []string{"rolled"},
	install: func(ctx context.Context, s *site) error {
		return rolled(ctx, s, "none")
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "apply", func(ctx context.Context) error { return rolled(ctx, s, string(r)) }); err != nil {
			return err
		}
		if err := s.until(ctx, "rollout status", func(ctx context.Context) error {
			_, err := s.client(ctx, "kubectl", "rollout", "status", "-n", "rolled", "deployment/web", "--timeout=1m")
			return err
		}); err != nil {
			return err
		}
		if err := drained(ctx, s, s.Nodes()[len(s.Nodes())-1]); err != nil {
			return err
		}
		return s.until(ctx, "cp and exec", func(ctx context.Context) error {
			pods, err := s.client(ctx, "kubectl", "get", "pods", "-n", "rolled", "-l", "round="+string(r), "-o", "name")
			if err != nil {
				return err
			}
			name := strings.TrimPrefix(strings.Fields(pods + " pod/none")[0], "pod/")
			file := filepath.Join(s.scratch, "file")
			if err := os.WriteFile(file, []byte("of "+name), 0o644); err != nil {
				return err
			}
			if _, err := s.client(ctx, "kubectl", "cp", file, "rolled/"+name+":/tmp/file"); err != nil {
				return err
			}
			got, err := s.client(ctx, "kubectl", "exec", "-n", "rolled", name, "--", "sh", "-c", "echo $(cat /tmp/file) in $ROUND")
			if want := fmt.Sprintf("of %s in %s", name, r); err == nil && got != want {
				err = fmt.Errorf("it prints %q, not %q", got, want)
			}
			return err
		})
	},
}

// rolled applies the Deployment of a round.
func rolled(ctx context.Context, s *site, round string) error {
	file := filepath.Join(s.scratch, "deployment.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
apiVersion: v1
kind: Namespace
metadata: {name: rolled}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: rolled}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, round: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: sh, image: "%[2]s", command: [sleep, infinity], env: [{name: ROUND, value: %[1]s}]}
`, round, images.Busybox), 0o644); err != nil {
		return err
	}
	_, err := s.client(ctx, "kubectl", "apply", "-f", file)
	return err
}

// drained drains a node of the Deployment, and gives it back.
func drained(ctx context.Context, s *site, node string) error {
	if err := s.until(ctx, "drain", func(ctx context.Context) error {
		_, err := s.client(ctx, "kubectl", "drain", node, "--pod-selector=app=web", "--timeout=1m")
		return err
	}); err != nil {
		return err
	}
	pods, err := s.client(ctx, "kubectl", "get", "pods", "-n", "rolled", "--field-selector=spec.nodeName="+node, "-o", "name")
	if err == nil && pods != "" {
		err = fmt.Errorf("drained, %s has %s", node, pods)
	}
	if err != nil {
		return err
	}
	return s.until(ctx, "uncordon", func(ctx context.Context) error {
		_, err := s.client(ctx, "kubectl", "uncordon", node)
		return err
	})
}
