package diskusage

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Usage is the usage of a volume. A volume without a file system of its own shares the
// node's free space.
type Usage struct {
	Used, Available, Capacity      uint64 // bytes
	InodesUsed, InodesFree, Inodes uint64
}

// FileSystem measures the file system that is mounted at path.
func FileSystem(path string) (*Usage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return nil, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	size := uint64(s.Bsize)
	return &Usage{
		Capacity: s.Blocks * size, Available: s.Bavail * size, Used: (s.Blocks - s.Bfree) * size,
		Inodes: s.Files, InodesFree: s.Ffree, InodesUsed: s.Files - s.Ffree,
	}, nil
}

// Walk is the usage of the files below path, on the file system there.
func Walk(ctx context.Context, path string) (*Usage, error) {
	u, err := FileSystem(path)
	if err != nil {
		return nil, err
	}
	u.Used, u.InodesUsed, err = Sum(ctx, path)
	return u, err
}

// Sum adds up the files below path, as du does: blocks that are in use, each file once, on one file
// system. Files that disappear meanwhile do not count. With an error it returns the sum so far.
func Sum(ctx context.Context, path string) (bytes, inodes uint64, err error) {
	var device uint64
	seen := map[uint64]bool{} // of files with several names
	err = filepath.WalkDir(path, func(at string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the pod has removed it
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if at == path {
			device = stat.Dev
		}
		if stat.Dev != device {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !e.IsDir() && stat.Nlink > 1 {
			if seen[stat.Ino] {
				return nil
			}
			seen[stat.Ino] = true
		}
		bytes, inodes = bytes+uint64(stat.Blocks)*512, inodes+1
		return nil
	})
	return bytes, inodes, err
}
