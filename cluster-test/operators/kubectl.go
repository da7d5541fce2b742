package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const kubectlScenario = "it rolls a Deployment out, drains a node of it, and reads back by `exec` a file that `cp` has written"

// kubectl runs on this machine.
var kubectl = kubectlClient{
	namespace: "rolled",
	run: func(ctx context.Context, s *site, stdin string, args ...string) (string, error) {
		return s.client(ctx, "kubectl", stdin, args...)
	},
	write: func(_ context.Context, s *site, text string) (string, error) {
		file := filepath.Join(s.scratch, "file")
		return file, os.WriteFile(file, []byte(text), 0o644)
	},
}.program(
	program{name: "kubectl", version: "v1.35.2", scenario: "two minor versions older than the API: " + kubectlScenario,
		npm: clients})

const runner = "runner"

//go:embed manifests/kubectl.yaml
var runnerManifests string

// debianKubectl is Debian's. It runs in a pod, as those of build servers do.
var debianKubectl = kubectlClient{
	namespace: "rolled-from-a-pod",
	install:   runnerManifests,
	run: func(ctx context.Context, s *site, stdin string, args ...string) (string, error) {
		r := s.KubectlResult(ctx, stdin,
			append([]string{"exec", "-i", "-n", runner, runner, "--", "kubectl"}, args...)...)
		return strings.TrimSpace(r.Out), r.Error
	},
	write: func(ctx context.Context, s *site, text string) (string, error) {
		_, err := s.kubectl(ctx, "exec", "-n", runner, runner, "--", "sh", "-c", "echo '"+text+"' >/tmp/file")
		return "/tmp/file", err
	},
}.program(program{
	name: "kubectl of Debian", version: "1.20.2 (Debian 12)",
	scenario: "from a pod, seventeen minor versions older than the API: " + kubectlScenario,
	images: []workshop.Image{workshop.Debian("docker.io/library/kubectl:debian", images.Foreign{
		Shell: true, Packages: []string{"kubernetes-client"},
		Config: v1.Config{User: "65534:65534", Env: []string{"HOME=/tmp"}},
	})},
	namespaces: []string{runner},
})

// kubectlClient is a kubectl, and how a scenario runs it.
type kubectlClient struct {
	namespace string // of its Deployment
	install   string // manifests
	run       func(ctx context.Context, s *site, stdin string, args ...string) (string, error)
	write     func(ctx context.Context, s *site, text string) (file string, err error) // where it runs
}

// program completes a program with the scenario.
func (k kubectlClient) program(p program) program {
	p.namespaces = append(p.namespaces, k.namespace)
	p.install = func(ctx context.Context, s *site) error {
		if k.install != "" {
			if err := s.apply(ctx, k.install); err != nil {
				return err
			}
		}
		return s.until(ctx, "apply", func(ctx context.Context) error { return k.rolled(ctx, s, "none") })
	}
	p.fact = func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "apply",
			func(ctx context.Context) error { return k.rolled(ctx, s, string(r)) }); err != nil {
			return err
		}
		if err := k.succeeds(ctx, s, "rollout", "status", "-n", k.namespace, "deployment/rolled",
			"--timeout=1m"); err != nil {
			return err
		}
		if err := k.drained(ctx, s, s.Nodes()[len(s.Nodes())-1]); err != nil {
			return err
		}
		return s.until(ctx, "cp and exec", func(ctx context.Context) error { return k.copied(ctx, s, r) })
	}
	return p
}

// succeeds waits until the client succeeds.
func (k kubectlClient) succeeds(ctx context.Context, s *site, args ...string) error {
	return s.until(ctx, strings.Join(args, " "), func(ctx context.Context) error {
		_, err := k.run(ctx, s, "", args...)
		return err
	})
}

// rolled applies the Deployment of a round.
func (k kubectlClient) rolled(ctx context.Context, s *site, round string) error {
	_, err := k.run(ctx, s, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: rolled, namespace: %[1]s}
spec:
  replicas: 3
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s, round: %[2]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: sh, image: "%[3]s", command: [sleep, infinity], env: [{name: ROUND, value: %[2]s}]}
`, k.namespace, round, images.Busybox), "apply", "-f", "-")
	return err
}

// drained drains a node of the Deployment, and gives it back.
func (k kubectlClient) drained(ctx context.Context, s *site, node string) error {
	err := k.succeeds(ctx, s, "drain", node, "--pod-selector=app="+k.namespace, "--timeout=1m")
	if err == nil {
		var pods string
		pods, err = s.kubectl(ctx, "get", "pods", "-n", k.namespace, "--field-selector=spec.nodeName="+node, "-o",
			"name")
		if err == nil && pods != "" {
			err = fmt.Errorf("drained, %s has %s", node, pods)
		}
	}
	// Other programs need the node, whatever has happened.
	if uncordonErr := k.succeeds(ctx, s, "uncordon", node); err == nil {
		err = uncordonErr
	}
	return err
}

// copied copies a file into a pod of the round, and reads it there.
func (k kubectlClient) copied(ctx context.Context, s *site, r round) error {
	pods, err := k.run(ctx, s, "", "get", "pods", "-n", k.namespace, "-l", "round="+string(r), "-o", "name")
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(strings.Fields(pods + " pod/none")[0], "pod/")
	file, err := k.write(ctx, s, "of "+name)
	if err != nil {
		return err
	}
	if _, err := k.run(ctx, s, "", "cp", file, k.namespace+"/"+name+":/tmp/file"); err != nil {
		return err
	}
	got, err := k.run(ctx, s, "", "exec", "-n", k.namespace, name, "--", "sh", "-c", "echo $(cat /tmp/file) in $ROUND")
	if want := fmt.Sprintf("of %s in %s", name, r); err == nil && got != want {
		err = fmt.Errorf("it prints %q, not %q", got, want)
	}
	return err
}
