package envfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFind(t *testing.T) {
	for name, c := range map[string]struct{ text, key, want, err string }{
		"plain":                {"A='1'\nB='2'\n", "B", "2", ""},
		"without a last line":  {"A='1'", "A", "1", ""},
		"first wins":           {"A='1'\nA='2'\n", "A", "1", ""},
		"missing":              {"A='1'\n", "B", "", ""},
		"blank and comment":    {"\n  \n# A='0'\n  A='1' # why\n", "A", "1", ""},
		"windows":              {"# c\r\n\r\nA='1'\r\nB='2'\r\n", "B", "2", ""},
		"several lines":        {"A='1\n2'\nB='3'\n", "A", "1\n2", ""},
		"after several lines":  {"A='1\n2'\nB='3'\n", "B", "3", ""},
		"nothing is special":   {"A='$B \\n \"x\" = #'\n", "A", "$B \\n \"x\" = #", ""},
		"space after equals":   {"A= '1'\nB='2'\n", "B", "2", ""},
		"empty by a space":     {"A= '1'\n", "A", "", ""},
		"space before equals":  {"A ='1'\n", "A", "", "line 1 has a space before"},
		"no equals":            {"A='1'\nexport\n", "B", "", "line 2 has no equals"},
		"no name":              {"='1'\n", "B", "", "line 1 has no name"},
		"no quotes":            {"A=1\n", "A", "", "line 1 has a value without"},
		"double quotes":        {"A=\"1\"\n", "A", "", "line 1 has a value without"},
		"not closed":           {"A='1\nB\n", "A", "", "line 1 has a single quote"},
		"more after the value": {"A='1'2\n", "A", "", "line 1 has more"},
		"the right line":       {"A='1\n2\n3'\nB\n", "C", "", "line 4 has no equals"},
		"quote in the name":    {"A'='1'\n", "A'", "1", ""},
	} {
		got, err := find(c.text, c.key)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %q and %v", name, got, err)
		}
	}
}

func TestValueTrustsNoFile(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(outside, "secret"), "A='secret'\n")
	write(filepath.Join(dir, "env"), "A='1'\nEMPTY=''\n")
	write(filepath.Join(dir, "long"), "A='"+strings.Repeat("x", longest)+"'\n")
	for link, to := range map[string]string{
		"absolute": filepath.Join(outside, "secret"), "upwards": "../" + filepath.Base(outside) + "/secret",
		"inside": "env", "nowhere": "none",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"env": "1", "/env": "1", "inside": "1"} {
		if got, ok, err := Value(dir, path, "A"); err != nil || !ok || got != want {
			t.Errorf("%s: %q, %v, %v", path, got, ok, err)
		}
	}
	for _, path := range []string{"none", "none/env", "nowhere"} {
		if got, ok, err := Value(dir, path, "A"); err != nil || ok {
			t.Errorf("%s: %q, %v, %v; want nothing", path, got, ok, err)
		}
	}
	if _, ok, err := Value(dir, "env", "EMPTY"); err != nil || ok {
		t.Errorf("an empty value: %v, %v; want nothing", ok, err)
	}
	for _, path := range []string{"absolute", "upwards", "pipe", "long", "."} {
		if got, ok, err := Value(dir, path, "A"); err == nil {
			t.Errorf("%s: %q, %v and no error", path, got, ok)
		}
	}
}
