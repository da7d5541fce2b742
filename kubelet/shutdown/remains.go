package shutdown

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/barque/barque/internal/remains"
)

// written begins the drop-in. Other kubelets have one of the same name.
const written = "# Written by barque"

// Remains is the drop-in by which logind waits for pods.
func Remains() []remains.Kind { return remainsIn(dropIns) }

func remainsIn(dropIns string) []remains.Kind {
	path := filepath.Join(dropIns, dropIn)
	find := func(context.Context) ([]string, error) {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.HasPrefix(text, []byte(written)) {
			return nil, nil
		}
		return []string{path}, err
	}
	remove := func(ctx context.Context) error {
		if found, err := find(ctx); err != nil || len(found) == 0 {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		_ = os.Remove(dropIns) // empty unless others have drop-ins
		logind, err := connect(ctx, dropIns, systemBus)
		if err != nil {
			return nil // without logind nobody reads it
		}
		return errors.Join(logind.reload(ctx), logind.Close())
	}
	return []remains.Kind{{Name: "the time that logind waits for pods", Find: find, Remove: remove}}
}
