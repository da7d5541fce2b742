package settings

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/barque/barque/internal/needs"
)

// TestAFileThatEverybodyMayWrite: a node runs as root, by flags that name programs and folders.
// Whoever may write the file, or add a drop-in, would be root.
func TestAFileThatEverybodyMayWrite(t *testing.T) {
	for name, open := range map[string]string{"the file": "config.yaml", "a drop-in": "config.yaml.d/10.yaml",
		"the folder": "config.yaml.d"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.write("config.yaml", "data-dir: /a")
			m.write("config.yaml.d/10.yaml", "data-dir: /b")
			at := filepath.Join(filepath.Dir(m.file), open)
			if err := os.Chmod(at, 0o777); err != nil {
				t.Fatal(err)
			}
			if _, err := m.load(); err == nil || !strings.Contains(err.Error(), at+": everybody may write it") {
				t.Errorf("the error is %v", err)
			}
			if err := os.Chmod(at, 0o775); err != nil { // of a group of administrators
				t.Fatal(err)
			}
			if _, err := m.load(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAFileOfAnotherUser: its owner could write it, whatever its mode.
func TestAFileOfAnotherUser(t *testing.T) {
	needs.Root(t, "a file of settings of another user")
	for name, of := range map[string]string{"the file": "config.yaml", "a drop-in": "config.yaml.d/10.yaml",
		"the folder": "config.yaml.d"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.write("config.yaml", "data-dir: /a")
			m.write("config.yaml.d/10.yaml", "data-dir: /b")
			at := filepath.Join(filepath.Dir(m.file), of)
			if err := os.Chown(at, 1234, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := m.load(); err == nil || !strings.Contains(err.Error(), at+": it belongs to the user 1234") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// TestAnOwnFile: a user without root may try a file of its own.
func TestAnOwnFile(t *testing.T) {
	m := newMachine(t)
	m.write("config.yaml", "data-dir: /a")
	info, err := os.Stat(m.file)
	if err != nil {
		t.Fatal(err)
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if err := trusted(m.file, info, owner); err != nil {
		t.Error(err)
	}
	if err := trusted(m.file, info, owner+1); (err == nil) != (owner == 0) {
		t.Errorf("to another user: %v", err)
	}
}

// TestDropInsWithoutTheFile: `barque cluster join` with a folder of its own writes a drop-in alone.
func TestDropInsWithoutTheFile(t *testing.T) {
	m := newMachine(t)
	m.write("config.yaml.d/90-join.yaml", "data-dir: /a")
	if _, err := m.load(); err != nil || *m.dir != "/a" {
		t.Errorf("the setting is %s: %v", *m.dir, err)
	}
}

// TestADevice: everybody may write /dev/null, and nothing comes out of it.
func TestADevice(t *testing.T) {
	m := newMachine(t)
	m.file = os.DevNull
	if _, err := m.load(); err != nil || *m.dir != "/var/lib/barque" {
		t.Errorf("the setting is %s: %v", *m.dir, err)
	}
}

// TestASecondDocument: settings behind a line of --- have no effect, and nobody should rely on
// them.
func TestASecondDocument(t *testing.T) {
	m := newMachine(t)
	m.write("config.yaml", "---\ndata-dir: /a\n---\nno-node: true\n")
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), m.file+":3: ") {
		t.Errorf("the error is %v", err)
	}
	m = newMachine(t)
	m.write("config.yaml", "---\ndata-dir: /a\n...\n# the end\n")
	if _, err := m.load(); err != nil || *m.dir != "/a" {
		t.Errorf("the setting is %s: %v", *m.dir, err)
	}
}
