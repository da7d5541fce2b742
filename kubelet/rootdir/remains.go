package rootdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/barque/barque/internal/remains"
)

// IsOf reports whether a directory is that of the node with this data directory.
func IsOf(dir, dataDir string) (bool, error) {
	owner, err := os.ReadFile(filepath.Join(dir, Owner))
	if errors.Is(err, fs.ErrNotExist) {
		return dir == former(dataDir), nil
	}
	return strings.TrimSuffix(string(owner), "\n") == dataDir, err
}

// Remains are the mounts of a kubelet's pods and plugins. release unmounts a directory and all
// below it. The files in the directory are data.
func Remains(dir string, release func(dir string) error) []remains.Kind {
	below := []string{filepath.Join(dir, "pods"), filepath.Join(dir, "plugins")}
	return []remains.Kind{{Name: "mounts of volumes",
		Find: func(context.Context) ([]string, error) {
			var found []string
			for _, d := range below {
				resolved, err := filepath.EvalSymlinks(d)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return nil, err
				}
				mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
				if err != nil {
					return nil, fmt.Errorf("list mounts: %w", err)
				}
				for _, m := range mounts {
					found = append(found, m.Mountpoint)
				}
			}
			return found, nil
		},
		Remove: func(context.Context) error {
			var errs []error
			for _, d := range below {
				errs = append(errs, release(d))
			}
			return errors.Join(errs...)
		}}}
}
