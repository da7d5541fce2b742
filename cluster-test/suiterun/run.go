package suiterun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

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
