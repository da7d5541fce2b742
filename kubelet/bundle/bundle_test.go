package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"

	"github.com/barque/barque/kubelet/bundle/format"
)

// packed builds a bundle's files from unpacked contents.
func packed(t *testing.T, contents map[string]string) fstest.MapFS {
	t.Helper()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer encoder.Close()
	files := fstest.MapFS{}
	var index format.Index
	for name, content := range contents {
		sum := sha256.Sum256([]byte(content))
		index.Components = append(index.Components, format.Component{
			Name: name, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:]),
			Executable: !strings.HasSuffix(name, ".tar"),
		})
		files[name+format.PackedSuffix] = &fstest.MapFile{Data: encoder.EncodeAll([]byte(content), nil)}
	}
	raw, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	files[format.IndexFile] = &fstest.MapFile{Data: raw}
	return files
}

func contents() map[string]string {
	all := map[string]string{}
	for _, name := range []string{Runc, Shim, PTP, HostLocal, pauseTar, helloTar} {
		all[name] = "content of " + name
	}
	return all
}

func TestUnpack(t *testing.T) {
	b, err := open(packed(t, contents()))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "bin")
	if err := b.Unpack(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 4 {
		t.Fatalf("unpacked %v, want the four executables only", entries)
	}
	path := filepath.Join(dir, Runc)
	first := stat(t, path)
	if first.Mode().Perm() != 0o755 {
		t.Errorf("mode of %s is %v", Runc, first.Mode())
	}

	// A correct file is not touched.
	if err := b.Unpack(dir); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(first, stat(t, path)) {
		t.Error("an unchanged file was replaced")
	}

	// A changed file is replaced by a new file: a running process keeps its inode.
	for name, spoil := range map[string]func() error{
		"content": func() error { return os.WriteFile(path, []byte("Content of "+Runc), 0o755) },
		"size":    func() error { return os.WriteFile(path, nil, 0o755) },
		"mode":    func() error { return os.Chmod(path, 0o644) },
		"gone":    func() error { return os.Remove(path) },
	} {
		held, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		before := stat(t, path)
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		// A killed Unpack leaves a part, maybe of another version of a correct file.
		for _, component := range []string{Runc, Shim} {
			if err := os.WriteFile(filepath.Join(dir, "."+component+".12345"), []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Unpack(dir); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != "content of "+Runc {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		if os.SameFile(before, stat(t, path)) {
			t.Errorf("%s: the file was changed in place", name)
		}
		held.Close()
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

func TestMissingComponents(t *testing.T) {
	if _, err := open(fstest.MapFS{"README.md": &fstest.MapFile{}}); !errors.Is(err, ErrNotBundled) {
		t.Errorf("no index: got %v, want ErrNotBundled", err)
	}
	partial := contents()
	delete(partial, Shim)
	if _, err := open(packed(t, partial)); !errors.Is(err, ErrNotBundled) || !strings.Contains(err.Error(), Shim) {
		t.Errorf("no shim: got %v, want ErrNotBundled that names it", err)
	}
}

func TestDamage(t *testing.T) {
	files := packed(t, contents())
	other := packed(t, map[string]string{Runc: "other"})
	files[Runc+format.PackedSuffix] = other[Runc+format.PackedSuffix]
	b, err := open(files)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := b.Unpack(dir); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("got %v, want an error about the checksum", err)
	}
	if _, err := os.Stat(filepath.Join(dir, Runc)); err == nil {
		t.Error("a damaged component was unpacked")
	}
}

func TestImages(t *testing.T) {
	b, err := open(packed(t, contents()))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.Images()); n != 2 {
		t.Errorf("%d images, want pause and hello", n)
	}
	for _, image := range b.Images() {
		reader, err := b.OpenImage(image)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(reader); !bytes.HasPrefix(got, []byte("content of ")) {
			t.Errorf("%s: got %q", image.Ref, got)
		}
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
