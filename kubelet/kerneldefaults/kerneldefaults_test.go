package kerneldefaults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	set := func(name, value string) {
		path := filepath.Join(dir, strings.ReplaceAll(name, ".", "/"))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Check(dir); err != nil {
		t.Errorf("a kernel without these parameters: %v", err)
	}
	for _, w := range wanted {
		set(w.name, w.value)
	}
	if err := Check(dir); err != nil {
		t.Error(err)
	}
	for _, w := range wanted {
		set(w.name, "7")
		if err := Check(dir); err == nil || !strings.Contains(err.Error(), w.name+"="+w.value+" (is 7)") ||
			strings.Count(err.Error(), "(is ") != 1 {
			t.Errorf("%s: %v", w.name, err)
		}
		set(w.name, w.value)
	}
}
