package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const pythonNamespace = "python"

//go:embed python.py
var pythonProgram string

//go:embed manifests/python.yaml
var pythonManifests string

// python is Debian's client with a small operator, which runs in the cluster.
var python = program{
	name: "Python client", version: "22.6.0 (Debian 12)",
	scenario: "two replicas of an operator elect a leader with the client's own election; it copies a new ConfigMap into a Secret",
	images: []workshop.Image{workshop.Debian("docker.io/library/python:debian", images.Foreign{
		Packages: []string{"python3", "python3-minimal", "python3-kubernetes"},
		Config:   v1.Config{User: "65534:65534", Env: []string{"PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"}},
	})},
	namespaces: []string{pythonNamespace},
	install: func(ctx context.Context, s *site) error {
		program, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]string{"name": "program", "namespace": pythonNamespace},
			"data":     map[string]string{"program.py": pythonProgram},
		})
		if err != nil {
			return err
		}
		return s.apply(ctx, namespaceNamed(pythonNamespace), string(program), pythonManifests)
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s, namespace: %s, labels: {copy: "yes"}}
data: {round: %[1]s}
`, r, pythonNamespace)); err != nil {
			return err
		}
		return s.until(ctx, "the copy", func(ctx context.Context) error {
			secret, err := s.Client.CoreV1().Secrets(pythonNamespace).Get(ctx, string(r), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := string(secret.Data["round"]); got != string(r) {
				return fmt.Errorf("the Secret has %q", got)
			}
			_, err = s.Client.CoreV1().Pods(pythonNamespace).Get(ctx, secret.Annotations["by"], metav1.GetOptions{})
			return err
		})
	},
}
