package main

import (
	"context"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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

// simple is an image with one program, as most Dockerfiles of Go programs make it.
func simple(name, path, pkg, user string) image {
	return image{
		name: name, binaries: map[string]source{path: {pkg: pkg}},
		config: v1.Config{Entrypoint: []string{path}, User: user},
	}
}

// userOnly is the configuration of an image whose manifests name the command.
func userOnly(user string) v1.Config { return v1.Config{User: user} }

// shelled is an image on busybox.
func shelled(i image) image {
	i.shell = true
	return i
}

// tool runs a tool of the program on this machine.
func (s *site) tool(ctx context.Context, t source, args ...string) (string, error) {
	file, err := s.workshop.binary(ctx, s.program, t)
	if err != nil {
		return "", err
	}
	return s.local(ctx, file, "", args...)
}
