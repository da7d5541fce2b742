package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Unpacked returns a directory with the files of Debian packages and of the libraries that they
// depend on, for programs that run on this machine without being installed. It is made now or at an
// earlier time.
func Unpacked(ctx context.Context, packages ...string) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep unpacked packages: %w", err)
	}
	cache = filepath.Join(cache, "barque-test-images")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	tool, err := newApt()
	if err != nil {
		return "", err
	}
	var names []string
	var resolved []debPackage
	// A machine without package lists knows no package, nor what it depends on.
	_, err = tool.refreshing(ctx, func() (string, error) {
		if names, err = tool.closure(ctx, packages...); err == nil {
			resolved, err = tool.resolve(ctx, names)
		}
		return "", err
	})
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "unpacked-"+key(resolved))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	root, err := tool.unpack(ctx, names, work)
	if err != nil {
		return "", err
	}
	if err := os.Rename(root, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}
