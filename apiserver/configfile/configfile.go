// Package configfile reads configuration files of a server: once, or again after each change. It
// knows for each file the hash of the content that is in effect, so that files that differ between
// servers are seen. It does not interpret the content.
package configfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/barque/barque/internal/lifecycle"
)

// Every is the interval at which a file is read. Files are small. Reading, and not watching, is
// right for all ways of replacing them: a rename, a symbolic link, a write in place.
const Every = 5 * time.Second

// maxSize bounds a file: a wrong path, such as a device, is no reason to fill the memory.
const maxSize = 4 << 20

// State of a file, for the status of the cluster.
type State struct {
	// Flag names the file to people, such as --authentication-config.
	Flag string
	// Path is "" for settings that are no file.
	Path string
	// Hash of the content in effect.
	Hash string
	// Next is the hash of the content on disk if it is another one, and counts from the next start
	// on.
	Next string
	// Problem is the reason why the content on disk is not in effect, or another fault of it.
	Problem string
}

// Hash returns the hash of a content, as upstream's metrics show it.
func Hash(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// Read returns the content of a file. An error begins with the path.
func Read(path string) ([]byte, error) {
	data, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// read is Read; its errors lack the path.
func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, unread(err)
	case info.IsDir():
		return nil, errors.New("it is a directory: want a file")
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file: want one, and no device or pipe")
	case info.Size() > maxSize:
		return nil, fmt.Errorf("it has %d bytes: want %d at most", info.Size(), maxSize)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, unread(err)
	}
	return data, nil
}

// unread is the error of a file that cannot be read, without the path.
func unread(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: put it there, or correct the path", err)
	}
	return fmt.Errorf("it cannot be read (%w): look at it with ls -l", err)
}

// Config of a File. Flag and Path are required.
type Config struct {
	Flag, Path string
	// Apply puts a content into effect, or returns the fault of it. nil means that a change counts
	// at the next start only.
	Apply func(ctx context.Context, data []byte) error
	// Reloaded is called after each change was applied or refused; it may be nil.
	Reloaded func(data []byte, err error)
	// Meanwhile describes the content in effect while the one on disk is not, and how to end that.
	// nil adds nothing to a problem.
	Meanwhile func() string
	Logger    *slog.Logger
}

// File is a configuration file whose content at the start is in effect.
type File struct {
	Config

	mu      sync.Mutex
	hash    string // in effect
	seen    string // the hash of the last look; empty: it could not be read
	next    string // see State
	problem error
}

// New returns a file whose content is already in effect.
func New(cfg Config, data []byte) *File { return &File{Config: cfg, hash: Hash(data)} }

// Fixed reads a file whose content counts until the next start.
func Fixed(flag, path string, logger *slog.Logger) (*File, error) {
	data, err := Read(path)
	if err != nil {
		return nil, fmt.Errorf("%s %w", flag, err)
	}
	return New(Config{Flag: flag, Path: path, Logger: logger}, data), nil
}

// Files are the configuration files of one part of a server.
type Files []*File

// Run checks all files until the context ends. Without files it waits for that.
func (f Files) Run(ctx context.Context) error {
	runs := []func(context.Context) error{func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}}
	for _, file := range f {
		runs = append(runs, file.Run)
	}
	return lifecycle.All(ctx, runs...)
}

// States returns the states of all.
func (f Files) States() (out []State) {
	for _, file := range f {
		out = append(out, file.State())
	}
	return out
}

// Run checks the file until the context ends.
func (f *File) Run(ctx context.Context) error {
	ticks := time.NewTicker(Every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
			f.Check(ctx)
		}
	}
}

// Check applies the content if it is not in effect, and the last read has found the same: half of a
// file that is being written may be valid, and lack a rule. A refused content is tried again,
// because the cause may be outside of the file.
func (f *File) Check(ctx context.Context) {
	data, err := read(f.Path)
	hash := ""
	if err == nil {
		hash = Hash(data)
	}
	again := f.seenTwice(hash)
	f.awaitStart(hash)
	if err == nil && hash == f.inEffect() {
		f.note("", nil)
		return
	}
	if f.Apply == nil {
		if err == nil {
			err = fmt.Errorf("it has changed since this server was started, and counts from the next start on")
		}
		f.note("", err)
		return
	}
	if err == nil {
		if !again {
			return
		}
		err = f.Apply(ctx, data)
	}
	if ctx.Err() != nil {
		return
	}
	if f.Reloaded != nil {
		f.Reloaded(data, err)
	}
	if err != nil {
		f.note("", err)
		return
	}
	f.note(hash, nil)
	f.Logger.Info("a changed configuration file is in effect", "flag", f.Flag, "file", f.Path, "hash", hash)
}

// seenTwice notes the hash of this look, empty if the file cannot be read. It returns whether the
// last look has found the same one.
func (f *File) seenTwice(hash string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	again := hash == f.seen
	f.seen = hash
	return again
}

// awaitStart notes the hash of this look if its content counts from the next start on.
func (f *File) awaitStart(hash string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next = ""; f.Apply == nil && hash != f.hash {
		f.next = hash
	}
}

func (f *File) inEffect() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hash
}

// note keeps the outcome of a check, and logs a problem once.
func (f *File) note(hash string, problem error) {
	if problem != nil && f.Meanwhile != nil {
		problem = fmt.Errorf("%w; %s", problem, f.Meanwhile())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if problem != nil && (f.problem == nil || problem.Error() != f.problem.Error()) {
		f.Logger.Error("a configuration file on disk is not in effect; the earlier content still is", "flag", f.Flag,
			"file", f.Path, "err", problem)
	}
	f.problem = problem
	if hash != "" {
		f.hash = hash
	}
}

// State of the file now.
func (f *File) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := State{Flag: f.Flag, Path: f.Path, Hash: f.hash, Next: f.next}
	if f.problem != nil {
		s.Problem = f.problem.Error()
	}
	return s
}
