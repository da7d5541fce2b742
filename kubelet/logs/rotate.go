// Package logs keeps the logs of containers from filling the disk.
//
// It renames a running container's log once it is larger than allowed, makes the runtime open a new
// one, compresses the older ones and removes the oldest. It never touches the newest file
// otherwise, and it does not read logs: package server does.
package logs

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the Rotator's interface to the container runtime.
type Runtime interface {
	ListContainers(ctx context.Context, selector map[string]string) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error)
	ReopenContainerLog(ctx context.Context, id string) error
}

// Config configures a Rotator.
type Config struct {
	Runtime  Runtime
	MaxSize  int64         // bytes of one file; 10 MiB when 0
	MaxFiles int           // of one container, the newest included; 5 when 0
	Every    time.Duration // how often to look; 10 s when 0
	Now      func() time.Time
	Logger   *slog.Logger
}

// Rotator rotates the logs of all running containers.
type Rotator struct {
	Config
}

// New returns a rotator.
func New(config Config) *Rotator {
	config.MaxSize = cmp.Or(config.MaxSize, 10<<20)
	config.MaxFiles = max(cmp.Or(config.MaxFiles, 5), 2)
	config.Every = cmp.Or(config.Every, 10*time.Second)
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Rotator{config}
}

// Run rotates until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := r.Rotate(ctx); err != nil && ctx.Err() == nil {
			r.Logger.Warn("cannot rotate the logs of containers; trying again", "err", err)
		}
	}
}

// Rotate looks at each running container once.
func (r *Rotator) Rotate(ctx context.Context) error {
	list, err := r.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range list {
		if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		status, err := r.Runtime.ContainerStatus(ctx, c.Id)
		if err != nil || status.LogPath == "" {
			continue // gone since; or it has no log
		}
		info, err := os.Stat(status.LogPath)
		if errors.Is(err, fs.ErrNotExist) {
			// An earlier process ended between the rename and the reopening: the runtime still
			// writes to a file that is neither read nor bounded.
			if err := r.Runtime.ReopenContainerLog(ctx, c.Id); err != nil {
				errs = append(errs, fmt.Errorf("log %s: %w", status.LogPath, err))
			}
			continue
		}
		if err != nil || info.Size() < r.MaxSize {
			continue
		}
		if err := r.rotate(ctx, c.Id, status.LogPath); err != nil {
			errs = append(errs, fmt.Errorf("log %s: %w", status.LogPath, err))
		}
	}
	return errors.Join(errs...)
}

const compressed = ".gz"

// rotate makes room first, so that a full disk gets emptier even when the rest fails. Each step may
// be repeated after a crash.
func (r *Rotator) rotate(ctx context.Context, id, path string) error {
	older, err := olderLogs(path)
	if err != nil {
		return err
	}
	for len(older) > r.MaxFiles-2 {
		if err := os.Remove(older[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		older = older[1:]
	}
	for _, name := range older {
		if err := compress(name); err != nil {
			return err
		}
	}
	aside := path + "." + r.Now().UTC().Format("20060102-150405.000")
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	if err := r.Runtime.ReopenContainerLog(ctx, id); err != nil {
		return errors.Join(err, os.Rename(aside, path)) // the runtime still writes to it
	}
	return nil
}

// olderLogs lists the rotated files of a log, the oldest first.
func olderLogs(path string) ([]string, error) {
	names, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, ".tmp") })
	slices.Sort(names) // their names are their times
	return names, nil
}

func compress(path string) error {
	if strings.HasSuffix(path, compressed) {
		return nil
	}
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := path + ".tmp"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(out)
	_, err = io.Copy(zip, in)
	if err = errors.Join(err, zip.Close(), out.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path+compressed); err != nil {
		return err
	}
	return os.Remove(path)
}
