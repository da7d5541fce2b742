package suiterun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	clustertest "github.com/barque/barque/cluster-test"
)

// BarqueVersion is the version of the binary under test.
func BarqueVersion(ctx context.Context) (string, error) {
	binary, err := clustertest.Binary()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, binary, "version", "-o", "json").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", binary, err)
	}
	var v struct{ Version string }
	return v.Version, json.Unmarshal(out, &v)
}

// Directories makes the directories of a program absolute, and makes them: that of its reports, and
// that of what is built once. The latter has a name in the user's cache directory by default.
func Directories(out, cache *string, name string) error {
	if *cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("where to keep what is built: %w; choose a directory with -cache", err)
		}
		*cache = filepath.Join(dir, name)
	}
	for _, dir := range []*string{out, cache} {
		absolute, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(absolute, 0o755); err != nil {
			return err
		}
		*dir = absolute
	}
	return nil
}

// CopyFile copies a file.
func CopyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
