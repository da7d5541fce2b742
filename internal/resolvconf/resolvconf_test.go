package resolvconf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    Config
	}{
		"all": {
			"# by hand\nnameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch example.com. corp.example .\noptions ndots:2 rotate\n",
			Config{[]string{"192.0.2.1", "2001:db8::1"}, []string{"example.com", "corp.example"},
				[]string{"ndots:2", "rotate"}}},
		"the last search line counts": {"search a\nsearch b c\n", Config{Searches: []string{"b", "c"}}},
		"the last value counts": {"options ndots:1\noptions timeout:1 ndots:3\n",
			Config{Options: []string{"ndots:3", "timeout:1"}}},
		"a word alone": {"nameserver\nsearch\n", Config{}},
		"nothing":      {"", Config{}},
	} {
		if diff := cmp.Diff(c.want, Parse(c.content)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// TestReadBehind: which file counts is decided each time.
func TestReadBehind(t *testing.T) {
	dir := t.TempDir()
	usual, behind := filepath.Join(dir, "usual"), filepath.Join(dir, "behind")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, usual, behind, want string
	}{
		{"no behind file", "nameserver 127.0.0.53\n", "", "127.0.0.53"},
		{"a stub", "nameserver 127.0.0.53\n", "nameserver 192.0.2.2\n", "192.0.2.2"},
		{"a stub without servers", "nameserver 127.0.0.53\n", "search example.com\n", "127.0.0.53"},
		{"a stub again, of IPv6", "nameserver ::1\n", "nameserver 192.0.2.3\n", "192.0.2.3"},
		{"real servers", "nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n", "192.0.2.1"},
		{"a stub beside a real one", "nameserver 127.0.0.53\nnameserver 192.0.2.1\n", "nameserver 192.0.2.2\n",
			"127.0.0.53 192.0.2.1"},
		{"nothing", "search example.com\n", "nameserver 192.0.2.2\n", ""},
	} {
		write(usual, c.usual)
		if c.behind != "" {
			write(behind, c.behind)
		}
		got, err := readBehind(usual, behind)
		if err != nil || strings.Join(got.Nameservers, " ") != c.want {
			t.Errorf("%s: %v, %v; want %s", c.name, got, err, c.want)
		}
	}
	if got, err := readBehind(filepath.Join(dir, "none"), behind); err != nil || len(got.Nameservers) > 0 {
		t.Errorf("no file: %v, %v", got, err)
	}
}
