package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/suiterun"
)

const (
	// module has the go.mod that says which version the suite is of.
	module suiterun.Module = "cluster-test/gatewayconformance/upstream"
	// upstream is the module that the suite is.
	upstream = "sigs.k8s.io/gateway-api/conformance"
)

// programs are upstream's, and the converter of Go's own test output.
type programs struct {
	dir     string // with suite, echo-basic and test2json
	source  string // directory of the suite's module
	version string // of the suite
}

// targets are the programs, and the arguments of the go command that makes each.
var targets = []struct {
	program string
	args    []string
}{
	{"echo-basic", []string{"build", "-ldflags=-s -w", upstream + "/echo-basic"}},
	{"suite", []string{"test", "-c", "-vet=off", "-ldflags=-s -w", upstream}},
	{"test2json", []string{"build", "cmd/test2json"}},
}

// prepare makes the programs and the images, or finds those of an earlier time.
func prepare(ctx context.Context, cache string) (*programs, map[name.Tag]v1.Image, error) {
	version, source, err := module.Source(ctx, upstream, say)
	if err != nil {
		return nil, nil, err
	}
	key, err := module.Key(ctx, targets)
	if err != nil {
		return nil, nil, err
	}
	p := &programs{dir: filepath.Join(cache, "programs-"+key), source: source, version: version}
	err = suiterun.Once(p.dir, func(work string) error {
		say("building the suite of Gateway API %s; the first time this takes some 4 CPU minutes", version)
		for _, t := range targets {
			args := append([]string{t.args[0], "-o", filepath.Join(work, t.program)}, t.args[1:]...)
			if _, err := module.Go(ctx, args...); err != nil {
				return fmt.Errorf("build %s: %w", t.program, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	names, err := imagesOf(source)
	if err != nil {
		return nil, nil, err
	}
	standIns, err := p.images(ctx, names)
	return p, standIns, err
}
