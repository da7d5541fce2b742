package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/barque/barque/kubelet/bundle/format"
)

// pack compresses each file into dir and writes the index last, so that a
// folder with an index is whole. Compressed files of an earlier run that no
// longer belong go away.
func pack(files []string, dir string) error {
	index := format.Index{Components: make([]format.Component, len(files))}
	keep := map[string]bool{}
	var group errgroup.Group
	for i, file := range files {
		component := &index.Components[i]
		component.Name = filepath.Base(file)
		keep[component.Name+format.PackedSuffix] = true
		group.Go(func() error { return packOne(file, dir, component) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*"+format.PackedSuffix))
	if err != nil {
		return err
	}
	for _, path := range old {
		if !keep[filepath.Base(path)] {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	content, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, format.IndexFile), append(content, '\n'))
}

func packOne(file, dir string, component *format.Component) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	component.Size = int64(len(content))
	component.SHA256 = hex.EncodeToString(sum[:])
	component.Executable = !strings.HasSuffix(component.Name, ".tar")
	// One goroutine: the encoder's output must not depend on the machine.
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer encoder.Close()
	if err := replaceFile(filepath.Join(dir, component.Name+format.PackedSuffix),
		encoder.EncodeAll(content, nil)); err != nil {
		return fmt.Errorf("pack %s: %w", file, err)
	}
	return nil
}

// replaceFile writes path by rename: an interrupted build leaves no half file
// that looks finished.
func replaceFile(path string, content []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
