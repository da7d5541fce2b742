// Package exits keeps records of how containers ended, for ends that the runtime may forget.
//
// A shim keeps the end of its container until containerd deletes the task, and containerd records
// it only afterwards. A containerd that ends in between, or a machine that boots meanwhile, leaves
// a container that CRI reports as exited with code 255 and the reason Unknown. A record has the
// true code. Package shim writes one before it forgets a task, and package containerd writes those
// of tasks that no containerd has seen end. The kubelet reads them (package cri).
//
// Records survive the end of processes. They are not synced to the disk: a loss of power ends the
// container, too.
package exits

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Env is the environment variable that has the path of the Dir, for shims.
const Env = "BARQUE_EXITS"

// Record is the end of a container.
type Record struct {
	ExitCode   uint32    `json:"exitCode"`
	FinishedAt time.Time `json:"finishedAt"`
	OOMKilled  bool      `json:"oomKilled,omitempty"` // the kernel killed a process of it for want of memory
}

// Dir is a directory of records, a file for each container.
type Dir string

func (d Dir) path(id string) (string, error) {
	if id == "" || id != filepath.Base(id) || strings.HasPrefix(id, ".") {
		return "", fmt.Errorf("%q is no ID of a container", id)
	}
	return filepath.Join(string(d), id), nil
}

// Write records the end of a container. A reader sees the whole record or none.
func (d Dir) Write(id string, r Record) error {
	path, err := d.path(id)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(d), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Read returns the record of a container; false if there is none that can be read.
func (d Dir) Read(id string) (Record, bool) {
	path, err := d.path(id)
	if err != nil {
		return Record{}, false
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Record{}, false
	}
	var r Record
	// A loss of power may leave an empty file.
	if err := json.Unmarshal(raw, &r); err != nil || r.FinishedAt.IsZero() {
		return Record{}, false
	}
	return r, true
}

// Remove removes the record of a container, if there is one.
func (d Dir) Remove(id string) error {
	path, err := d.path(id)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// IDs lists the containers that have a record older than age. Unfinished files of that age are
// removed: their writer was killed.
func (d Dir) IDs(age time.Duration) ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		switch {
		case time.Since(info.ModTime()) < age:
		case strings.HasPrefix(e.Name(), "."):
			if err := os.Remove(filepath.Join(string(d), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		default:
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
