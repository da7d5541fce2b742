package resolvconf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    Config
	}{
		"all": {"# by hand\nnameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch example.com. corp.example .\noptions ndots:2 rotate\n",
			Config{[]string{"192.0.2.1", "2001:db8::1"}, []string{"example.com", "corp.example"}, []string{"ndots:2", "rotate"}}},
		"the last search line counts": {"search a\nsearch b c\n", Config{Searches: []string{"b", "c"}}},
		"the last value counts":       {"options ndots:1\noptions timeout:1 ndots:3\n", Config{Options: []string{"ndots:3", "timeout:1"}}},
		"a word alone":                {"nameserver\nsearch\n", Config{}},
		"nothing":                     {"", Config{}},
	} {
		if diff := cmp.Diff(c.want, Parse(c.content)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

func TestFind(t *testing.T) {
	for name, c := range map[string]struct {
		usual, behind string // "" for no file
		want          string
	}{
		"real servers":             {"nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n", "usual"},
		"a stub":                   {"nameserver 127.0.0.53\n", "nameserver 192.0.2.2\n", "behind"},
		"a stub of somebody else":  {"nameserver 127.0.0.1\n", "", "usual"},
		"a stub without servers":   {"nameserver 127.0.0.53\n", "search example.com\n", "usual"},
		"a stub beside a real one": {"nameserver 127.0.0.53\nnameserver 192.0.2.1\n", "nameserver 192.0.2.2\n", "usual"},
		"no file":                  {"", "nameserver 192.0.2.2\n", "usual"},
	} {
		dir := t.TempDir()
		paths := map[string]string{"usual": filepath.Join(dir, "usual"), "behind": filepath.Join(dir, "behind")}
		for file, content := range map[string]string{"usual": c.usual, "behind": c.behind} {
			if content == "" {
				continue
			}
			if err := os.WriteFile(paths[file], []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := find(paths["usual"], paths["behind"]); got != paths[c.want] {
			t.Errorf("%s: %s", name, got)
		}
	}
}
