package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
