package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

// shipped applies files of the module. CRDs may be too large for the annotation of a client-side
// apply.
func (s *site) shipped(ctx context.Context, files ...string) error {
	for _, f := range files {
		if err := s.KubectlResult(ctx, "", "apply", "--server-side", "-f", filepath.Join(s.dir, f)).Error; err != nil {
			return err
		}
	}
	return nil
}

// kustomized applies a kustomization of the module.
func (s *site) kustomized(ctx context.Context, dir string) error {
	return s.KubectlResult(ctx, "", "apply", "--server-side", "-k", filepath.Join(s.dir, dir)).Error
}

// copied copies a directory of the module to where the scenario may complete it.
func (s *site) copied(dir string) (string, error) {
	to := filepath.Join(s.scratch, filepath.Base(dir))
	if err := os.RemoveAll(to); err != nil {
		return "", err
	}
	return to, os.CopyFS(to, os.DirFS(filepath.Join(s.dir, dir)))
}

// tool runs a tool of the program on this machine.
func (s *site) tool(ctx context.Context, t workshop.Source, args ...string) (string, error) {
	file, err := s.workshop.Binary(ctx, s.program.order(), t)
	if err != nil {
		return "", err
	}
	return s.local(ctx, file, "", args...)
}
