package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// module is where the go.mod is that says which Kubernetes the suite is of.
const module = "cluster-test/conformance/upstream"

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
	out, err := golang(ctx, "list", "-m", "-f", "{{.Version}} {{.Dir}}", upstream)
	if err != nil {
		return nil, err
	}
	p := &programs{}
	version, dir, _ := strings.Cut(strings.TrimSpace(out), " ")
	if p.version, p.source = version, dir; dir == "" {
		say("downloading %s %s", upstream, version)
		if _, err := golang(ctx, "mod", "download", upstream); err != nil {
			return nil, err
		}
		if p.source, err = golang(ctx, "list", "-m", "-f", "{{.Dir}}", upstream); err != nil {
			return nil, err
		}
		p.source = strings.TrimSpace(p.source)
	}
	key, err := programsKey(ctx)
	if err != nil {
		return nil, err
	}
	p.dir = filepath.Join(cache, "programs-"+key)
	if _, err := os.Stat(p.dir); !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := p.compile(ctx, work); err != nil {
		return nil, err
	}
	// Renamed when all are there: a directory that exists is whole.
	if err := os.Rename(work, p.dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return p, nil
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
	flags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s", version, p.version, minor)
	say("building the suite of Kubernetes %s; the first time this takes some 40 CPU minutes", p.version)
	for _, target := range targets {
		say("  %s", target.program)
		command := []string{"build"}
		if strings.HasSuffix(target.program, ".test") {
			command = []string{"test", "-c", "-vet=off"}
		}
		command = append(command, "-ldflags", flags, "-o", filepath.Join(dir, target.program), target.pkg)
		if _, err := golang(ctx, command...); err != nil {
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

// programsKey names the sources of the programs and their tools.
func programsKey(ctx context.Context) (string, error) {
	h := sha256.New()
	for _, file := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return "", fmt.Errorf("%w; run this in the root of Barque's source", err)
		}
		h.Write(data)
	}
	compiler, err := golang(ctx, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(h, compiler, runtime.GOARCH, targets)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// golang runs the go command in the suite's module.
func golang(ctx context.Context, args ...string) (string, error) {
	program := os.Getenv("GO")
	if program == "" {
		program = "go"
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = module
	// The same flags on all machines and for all makers: a build finds what another one has cached.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s, in %s: %w: %s",
			strings.Join(args, " "), module, err, strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}

// images returns the names of all images that the suite may use.
func (p *programs) images(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(p.dir, "e2e.test"), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("ask the suite for its images: %w", err)
	}
	return strings.Fields(string(out)), nil
}
