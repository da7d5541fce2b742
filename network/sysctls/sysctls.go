// Package sysctls changes settings of the kernel, and notes their values from before, so that they
// can be put back when the node is taken off the machine.
//
// The kernel forgets its settings at each boot, and each network namespace has settings of its own.
// So a note holds for one boot and one namespace. It is on the disk before the setting is changed.
package sysctls

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/atomicfile"
)

// Book has the notes of a node. Its zero value, and a nil one, note nothing.
type Book struct {
	// File has the notes.
	File string

	mu sync.Mutex
}

// notes are the content of File.
type notes struct {
	Boot    string `json:"boot"`
	Network uint64 `json:"network"` // inode of the network namespace
	// Settings are by their path in /proc/sys or /sys.
	Settings map[string]change `json:"settings"`
}

// change has a value from before Barque, and Barque's.
type change struct {
	Before string `json:"before"`
	Set    string `json:"set"`
}

// bootFile names the boot.
const bootFile = "/proc/sys/kernel/random/boot_id"

// here returns empty notes of this boot and of the calling thread's network namespace.
func here() (notes, error) {
	boot, err := os.ReadFile(bootFile)
	if err != nil {
		return notes{}, err
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &namespace); err != nil {
		return notes{}, fmt.Errorf("look at the network namespace: %w", err)
	}
	return notes{Boot: strings.TrimSpace(string(boot)), Network: namespace.Ino, Settings: map[string]change{}}, nil
}

// load returns the notes that still hold. Damaged ones are as none: a node does not fail for them.
func (b *Book) load() (notes, error) {
	n, err := here()
	if err != nil {
		return n, err
	}
	data, err := os.ReadFile(b.File)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	var stored notes
	if json.Unmarshal(data, &stored) != nil || stored.Boot != n.Boot || stored.Network != n.Network ||
		stored.Settings == nil {
		return n, nil
	}
	return stored, nil
}

// Set changes a setting, the path of which is that of its file.
func (b *Book) Set(path, value string) error {
	if b != nil && b.File != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		if err := b.note(path, value); err != nil {
			return fmt.Errorf("note what %s was: %w", Name(path), err)
		}
	}
	return os.WriteFile(path, []byte(value+"\n"), 0o644)
}

// note keeps the first value that was noted.
func (b *Book) note(path, value string) error {
	n, err := b.load()
	if err != nil {
		return err
	}
	is, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	c, known := n.Settings[path]
	if !known {
		c.Before = strings.TrimSpace(string(is))
	}
	if known && c.Set == value {
		return nil
	}
	c.Set = value
	n.Settings[path] = c
	data, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(b.File, append(data, '\n'), 0o600)
}

// Changed returns the settings that have Barque's value, and can be put back.
func (b *Book) Changed() ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.load()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, path := range slices.Sorted(maps.Keys(n.Settings)) {
		if c := n.Settings[path]; c.isSet(path) {
			found = append(found, fmt.Sprintf("%s is %s, and was %s", Name(path), c.Set, c.Before))
		}
	}
	return found, nil
}

// isSet reports whether a setting still has Barque's value. Somebody else may have changed it, or
// it has gone with its network interface.
func (c change) isSet(path string) bool {
	is, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(is)) == c.Set && c.Set != c.Before
}

// PutBack gives the settings their values from before. One that somebody else has changed since,
// and one that keep names, stays. It removes the notes.
func (b *Book) PutBack(keep func(path string) bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.load()
	if err != nil {
		return err
	}
	for path, c := range n.Settings {
		if !c.isSet(path) || keep(path) {
			continue
		}
		if writeErr := os.WriteFile(path, []byte(c.Before+"\n"), 0o644); writeErr != nil {
			err = errors.Join(err, fmt.Errorf("put %s back to %s: %w", Name(path), c.Before, writeErr))
		}
	}
	if err != nil {
		return err
	}
	return atomicfile.Remove(b.File)
}

// Name is the usual name of a setting, such as net.ipv4.ip_forward.
func Name(path string) string {
	name, of := strings.CutPrefix(filepath.Clean(path), "/proc/sys/")
	if !of {
		return path
	}
	return strings.ReplaceAll(name, "/", ".")
}
