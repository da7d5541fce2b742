package sysctls

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// setting is a file in place of the kernel's.
func setting(t *testing.T, value string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "setting")
	write(t, path, value)
	return path
}

func write(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func none(string) bool { return false }

// TestPutBack: the value of before comes back, however often the setting was changed since; one
// that somebody else changed stays, and so does one that is kept.
func TestPutBack(t *testing.T) {
	b := &Book{File: filepath.Join(t.TempDir(), "notes")}
	own, others, kept := setting(t, "0\n"), setting(t, "60\n"), setting(t, "1\n")
	for _, s := range []struct{ path, value string }{{own, "1"}, {own, "2"}, {others, "3600"}, {kept, "2"}} {
		if err := b.Set(s.path, s.value); err != nil || read(t, s.path) != s.value {
			t.Fatalf("%s: %v", read(t, s.path), err)
		}
	}
	write(t, others, "7200")
	// as after a restart
	b = &Book{File: b.File}
	write(t, own, "0") // a network manager did that
	if err := b.Set(own, "2"); err != nil {
		t.Fatal(err)
	}
	found, err := b.Changed()
	want := []string{own + " is 2, and was 0", kept + " is 2, and was 1"}
	if own > kept {
		want[0], want[1] = want[1], want[0]
	}
	if err != nil || !reflect.DeepEqual(found, want) {
		t.Errorf("%q: %v", found, err)
	}
	for range 2 { // the second one finds nothing to do
		if err := b.PutBack(func(path string) bool { return path == kept }); err != nil {
			t.Fatal(err)
		}
		if o, x, k := read(t, own), read(t, others), read(t, kept); o != "0" || x != "7200" || k != "2" {
			t.Errorf("they are %s, %s and %s", o, x, k)
		}
	}
	if _, err := os.Stat(b.File); !os.IsNotExist(err) {
		t.Errorf("the notes stay: %v", err)
	}
}

// TestNotesOfAnotherBoot: the kernel has forgotten the settings.
func TestNotesOfAnotherBoot(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"another boot":      func(s string) string { return strings.Replace(s, `"boot": "`, `"boot": "x`, 1) },
		"another namespace": func(s string) string { return strings.Replace(s, `"network": `, `"network": 1`, 1) },
		"damaged":           func(s string) string { return s[:len(s)/2] },
	} {
		t.Run(name, func(t *testing.T) {
			b, path := &Book{File: filepath.Join(t.TempDir(), "notes")}, setting(t, "0")
			if err := b.Set(path, "1"); err != nil {
				t.Fatal(err)
			}
			write(t, b.File, damage(read(t, b.File)))
			if found, err := b.Changed(); err != nil || len(found) > 0 {
				t.Errorf("%q: %v", found, err)
			}
			if err := b.PutBack(none); err != nil || read(t, path) != "1" {
				t.Errorf("it is %s: %v", read(t, path), err)
			}
		})
	}
}

// TestNoNotes: a check, and a node of tests, change settings without a book.
func TestNoNotes(t *testing.T) {
	path := setting(t, "0")
	for i, b := range []*Book{nil, {}} {
		if err := b.Set(path, "1"); err != nil || read(t, path) != "1" {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestName(t *testing.T) {
	for path, want := range map[string]string{"/proc/sys/net/ipv4/ip_forward": "net.ipv4.ip_forward",
		"/sys/module/nf_conntrack/parameters/hashsize": "/sys/module/nf_conntrack/parameters/hashsize"} {
		if got := Name(path); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
