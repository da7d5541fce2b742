package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var helmItself = program{
	name: "Helm", version: "v4.1.4",
	scenario:   "the chart of `helm create` is upgraded and waited for, its test passes, a failed upgrade is rolled back",
	npm:        clients,
	namespaces: []string{"helm-starter"},
	install: func(ctx context.Context, s *site) error {
		if err := os.RemoveAll(filepath.Join(s.scratch, "starter")); err != nil {
			return err
		}
		if _, err := s.helm(ctx, "create", filepath.Join(s.scratch, "starter")); err != nil {
			return err
		}
		return starter(ctx, s, 1, "1.21.6")
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := starter(ctx, s, r.replicas(), "1.22"); err != nil {
			return err
		}
		if out, err := s.helm(ctx, "test", "starter", "-n", "helm-starter"); err != nil ||
			!strings.Contains(out, "Succeeded") {
			return fmt.Errorf("helm test: %w: %s", err, out)
		}
		// brief: the upgrade is to fail
		if err := starter(ctx, s, r.replicas()+1, "no-such-tag", "--timeout", "10s",
			"--rollback-on-failure"); err == nil {
			return fmt.Errorf("an upgrade to an image that is not there succeeds")
		}
		return s.wants(ctx, fmt.Sprint(r.replicas(), " nginx:1.22"), "get", "deployment", "-n", "helm-starter",
			"starter",
			"-o", "jsonpath={.status.readyReplicas} {.spec.template.spec.containers[0].image}")
	},
}

// starter brings the release to the state that a round wants, and waits for it.
func starter(ctx context.Context, s *site, replicas int, tag string, args ...string) error {
	return s.chart(ctx, filepath.Join(s.scratch, "starter"), "starter", "helm-starter", append([]string{
		"--wait", "--set", fmt.Sprint("replicaCount=", replicas), "--set-string", "image.tag=" + tag}, args...)...)
}
