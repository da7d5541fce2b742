// Package unpack reads the archives of commands for tests. It is not for the product: it keeps all
// of an archive in memory, and trusts it.
package unpack

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"testing"
)

// TarGz returns the files of an archive, by their names in it.
func TarGz(t testing.TB, path string) map[string][]byte {
	t.Helper()
	files, err := tarGz(path)
	if err != nil {
		t.Fatalf("unpack %s: %v", path, err)
	}
	return files
}

func tarGz(path string) (map[string][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for archive := tar.NewReader(zipped); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[head.Name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
}
