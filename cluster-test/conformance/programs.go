package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/barque/barque/cluster-test/suiterun"
)

// module has the go.mod that says which Kubernetes the suite is of.
const module suiterun.Module = "cluster-test/conformance/upstream"

// upstream is the module that the suite is part of.
const upstream = "k8s.io/kubernetes"

// programs are upstream's, built from the Go modules that they are published as.
type programs struct {
	dir     string // agnhost, e2e.test, etcd, ginkgo, kubectl, nonewprivs, pause and others
	source  string // directory of the module k8s.io/kubernetes
	version string // of that module
}

// build builds the programs, or finds those of an earlier time.
func build(ctx context.Context, cache string) (*programs, error) {
	version, source, err := module.Source(ctx, upstream, say)
	if err != nil {
		return nil, err
	}
	key, err := module.Key(ctx, targets)
	if err != nil {
		return nil, err
	}
	p := &programs{dir: filepath.Join(cache, "programs-"+key), source: source, version: version}
	return p, suiterun.Once(p.dir, func(work string) error { return p.compile(ctx, work) })
}

// targets are the programs that are built, and their packages.
var targets = []struct{ program, pkg string }{
	{"kubectl", upstream + "/cmd/kubectl"},
	{"agnhost", upstream + "/test/images/agnhost"},
	{"nonewprivs", upstream + "/test/images/nonewprivs"},
	{"regression-issue-74839", upstream + "/test/images/regression-issue-74839"},
	{"resource-consumer", upstream + "/test/images/resource-consumer"},
	{"consume-cpu", upstream + "/test/images/resource-consumer/consume-cpu"},
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"sample-apiserver", "k8s.io/sample-apiserver"},
	{"ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"},
	{"e2e.test", upstream + "/test/e2e"},
}

func (p *programs) compile(ctx context.Context, dir string) error {
	const version = "k8s.io/component-base/version"
	minor := strings.SplitN(p.version, ".", 3)[1]
	flags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s", version,
		p.version, minor)
	say("building the suite of Kubernetes %s; the first time this takes some 40 CPU minutes", p.version)
	for _, target := range targets {
		say("  %s", target.program)
		command := []string{"build"}
		if strings.HasSuffix(target.program, ".test") {
			command = []string{"test", "-c", "-vet=off"}
		}
		command = append(command, "-ldflags", flags, "-o", filepath.Join(dir, target.program), target.pkg)
		if _, err := module.Go(ctx, command...); err != nil {
			return err
		}
	}
	say("  pause")
	cc := exec.CommandContext(ctx, "cc", "-Os", "-static", "-s", "-DVERSION=e2e",
		"-o", filepath.Join(dir, "pause"), filepath.Join(p.source, "build/pause/linux/pause.c"))
	if out, err := cc.CombinedOutput(); err != nil {
		return fmt.Errorf("compile pause: %w: %s", err, out)
	}
	return nil
}

// images returns the names of all images that the suite may use.
func (p *programs) images(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(p.dir, "e2e.test"), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("ask the suite for its images: %w", err)
	}
	return strings.Fields(string(out)), nil
}
