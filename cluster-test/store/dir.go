package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dirPattern  = "barque-store-"
	keptPattern = "barque-store-failed-"
	lockName    = "lock"
)

// groupDir is the directory of a group. A lock in it shows whether its driver lives.
type groupDir struct {
	path string
	lock *os.File
}

// newGroupDir makes a directory, after it has removed those whose drivers are dead.
func newGroupDir(parent string) (*groupDir, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	if err := sweep(parent); err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(parent, dirPattern)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(path, lockName))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &groupDir{path, lock}, nil
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// young is the age up to which a directory may still be without its lock.
const young = time.Minute

// sweep removes the directories of drivers that were killed.
func sweep(parent string) error {
	left, err := filepath.Glob(filepath.Join(parent, dirPattern+"[0-9]*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) < young {
			continue
		}
		lock, err := lockFile(filepath.Join(path, lockName))
		if err != nil {
			continue // its driver lives, or it belongs to another user
		}
		err = os.RemoveAll(path)
		lock.Close()
		if err != nil {
			return fmt.Errorf("remove what a killed driver left: %w", err)
		}
	}
	return nil
}

// keep moves the directory out of the way of remove and sweep.
func (d *groupDir) keep() (string, error) {
	kept := filepath.Join(filepath.Dir(d.path), keptPattern+filepath.Base(d.path)[len(dirPattern):])
	if err := os.Rename(d.path, kept); err != nil {
		return "", err
	}
	return kept, d.lock.Close()
}

func (d *groupDir) remove() error {
	return errors.Join(os.RemoveAll(d.path), d.lock.Close())
}
