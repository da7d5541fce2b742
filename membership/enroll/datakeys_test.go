package enroll

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/pki"
)

// TestDataKeysOfBefore: a machine that joins again keeps no data keys of its former store, also if
// it was stopped in the middle.
func TestDataKeysOfBefore(t *testing.T) {
	o := &Options{DataDir: t.TempDir(), Name: "a"}
	file := credentials.DataKeysFile(o.DataDir)
	for path, data := range map[string]string{file: "{}", RejoinPath(o.DataDir): `{"format":2,"id":"x","agent":{}}`} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(data), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// The grant has no certificates, so that the rest may fail: the keys are gone before.
	_, err := finishRejoin(o, pki.RoleAgent, slog.New(slog.DiscardHandler))
	if _, gone := os.Stat(file); !errors.Is(gone, fs.ErrNotExist) {
		t.Errorf("they are kept: %v, %v", gone, err)
	}
}
