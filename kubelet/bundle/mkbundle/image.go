package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// imageSpec describes an image of one static binary, which becomes its entry point.
type imageSpec struct {
	name, arch, binary, user, port string
}

// writeImage writes the image as a tar that containerd imports.
func writeImage(spec imageSpec, out string) error {
	tag, err := name.NewTag(spec.name)
	if err != nil {
		return err
	}
	file := "/" + filepath.Base(spec.binary)
	content, err := layerTar(spec.binary, file)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	})
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config := &v1.ConfigFile{
		Architecture: spec.arch,
		OS:           "linux",
		Config:       v1.Config{Entrypoint: []string{file}, User: spec.user},
	}
	if spec.port != "" {
		config.Config.ExposedPorts = map[string]struct{}{spec.port: {}}
	}
	built, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config.RootFS = built.RootFS
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := tarball.Write(tag, image, &archive); err != nil {
		return err
	}
	return replaceFile(out, archive.Bytes())
}

// layerTar is the layer: the directories that a container's mounts need, and the binary.
func layerTar(binary, file string) ([]byte, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, dir := range []struct {
		path string
		mode int64
	}{{"dev/", 0o755}, {"etc/", 0o755}, {"proc/", 0o755}, {"sys/", 0o755}, {"tmp/", 0o1777}} {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: dir.path, Mode: dir.mode, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: file[1:], Mode: 0o755, Size: int64(len(content)), Format: tar.FormatUSTAR,
	}
	if err := archive.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := archive.Write(content); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}
