package backups

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

// TestInspect: a backup is verified, and a directory has another error than a damaged backup.
func TestInspect(t *testing.T) {
	store := raftstore.NewInMemory(raftstore.Options{})
	defer store.Close()
	if _, err := store.Put(t.Context(), "/registry/a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	view, err := store.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a.backup")
	_, err = backup.Save(path, nil, func(w io.Writer) error {
		_, err := backup.Write(w,
			backup.Source{View: view, About: backup.About{ClusterID: "c", Server: "s1", Created: time.Unix(1, 0)}}, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Inspect(path, "", nil); err != nil || !r.Verified || r.About.ClusterID != "c" || r.About.Items != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	damaged := filepath.Join(dir, "damaged")
	if err := os.WriteFile(damaged, []byte("no backup"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{dir: "is a directory", damaged: damaged + ": ",
		filepath.Join(dir, "none"): "no such file"} {
		if _, err := Inspect(path, "", nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q", path, err, says)
		}
	}
}
