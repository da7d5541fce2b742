package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

const sealedSecretsNamespace = "sealed-secrets"

var kubeseal = workshop.Source{Pkg: "cmd/kubeseal"}

var sealedSecrets = program{
	name: "Sealed Secrets", module: "github.com/bitnami-labs/sealed-secrets", version: "v0.40.0",
	scenario: "kubeseal seals a secret with the controller's certificate, fetched through the API server; the controller opens it",
	images: []workshop.Image{
		workshop.Simple("docker.io/bitnami/sealed-secrets-controller:0.40.0", "/usr/local/bin/controller",
			"cmd/controller", "1001"),
	},
	npm:        clients,
	tools:      []workshop.Source{kubeseal},
	namespaces: []string{sealedSecretsNamespace},
	install: func(ctx context.Context, s *site) error {
		// The chart is released apart from the controller, and names the one before.
		return s.chart(ctx, "helm/sealed-secrets", "sealed-secrets", sealedSecretsNamespace, "--set",
			"image.tag=0.40.0")
	},
	fact: func(ctx context.Context, s *site, r round) error {
		name := "password-" + string(r)
		plain := filepath.Join(s.scratch, name+".yaml")
		text := fmt.Sprintf(
			"apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData: {password: of %s}",
			name, sealedSecretsNamespace, r)
		if err := os.WriteFile(plain, []byte(text), 0o600); err != nil {
			return err
		}
		var sealed string
		if err := s.until(ctx, "kubeseal", func(ctx context.Context) (err error) {
			sealed, err = s.tool(ctx, kubeseal, "--controller-namespace", sealedSecretsNamespace, "--controller-name",
				"sealed-secrets",
				"--format", "yaml", "--secret-file", plain)
			return err
		}); err != nil {
			return err
		}
		if err := s.apply(ctx, sealed); err != nil {
			return err
		}
		return s.wants(ctx, "of "+string(r), "get", "secret", "-n", sealedSecretsNamespace, name, "--template",
			"{{.data.password | base64decode}}")
	},
}
