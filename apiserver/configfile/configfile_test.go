package configfile

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFixed: a change of a file that is read at the start is known by its hash until then. A
// problem does not repeat the path, which the state has.
func TestFixed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, "first")
	f, err := Fixed("--policy", path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	first, second := Hash([]byte("first")), Hash([]byte("second"))
	for _, c := range []struct {
		name    string
		do      func() error
		next    string
		problem string
	}{
		{"as it was", func() error { return nil }, "", ""},
		{"it changes", func() error { return os.WriteFile(path, []byte("second"), 0o600) }, second, "next start"},
		{"it is gone", func() error { return os.Remove(path) }, "", "no such file or directory: put it there"},
		{"it is back", func() error { return os.WriteFile(path, []byte("first"), 0o600) }, "", ""},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		f.Check(t.Context())
		got := f.State()
		if got.Hash != first || got.Next != c.next || !strings.Contains(got.Problem, c.problem) ||
			(got.Problem == "") != (c.problem == "") || strings.Contains(got.Problem, path) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestReload: a change is applied once. One that is refused leaves the former content in effect,
// and is tried again.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, "first")
	var applied []string
	var outcomes []error
	bad := errors.New("it is bad")
	f := New(Config{Flag: "--config", Path: path, Logger: slog.New(slog.DiscardHandler),
		Apply: func(_ context.Context, data []byte) error {
			if applied = append(applied, string(data)); string(data) == "bad" {
				return bad
			}
			return nil
		},
		Reloaded: func(_ []byte, err error) { outcomes = append(outcomes, err) },
	}, []byte("first"))

	f.Check(t.Context())
	if len(applied) != 0 {
		t.Fatalf("an unchanged file was applied: %q", applied)
	}
	for _, part := range []string{"b", "ba", "bad"} { // a slow writer
		write(t, path, part)
		f.Check(t.Context())
	}
	f.Check(t.Context())
	f.Check(t.Context())
	if got := f.State(); got.Hash != Hash([]byte("first")) || got.Problem != bad.Error() {
		t.Fatalf("after a bad file: %+v", got)
	}
	for half, meanwhile := range map[string]func() error{ // found twice, and not one after the other
		"half": func() error { return os.WriteFile(path, []byte("first"), 0o600) },
		"part": func() error { return os.Remove(path) },
	} {
		write(t, path, half)
		f.Check(t.Context())
		if err := meanwhile(); err != nil {
			t.Fatal(err)
		}
		f.Check(t.Context())
		write(t, path, half)
		f.Check(t.Context())
	}
	write(t, path, "good")
	f.Check(t.Context())
	f.Check(t.Context())
	if got := f.State(); got.Hash != Hash([]byte("good")) || got.Problem != "" {
		t.Fatalf("after a good file: %+v", got)
	}
	if got := strings.Join(applied, " "); got != "bad bad good" || len(outcomes) != 4 || outcomes[3] != nil {
		t.Fatalf("applied %q, outcomes %v", got, outcomes)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.Check(t.Context())
	if got := f.State(); got.Hash != Hash([]byte("good")) || !strings.Contains(got.Problem, "no such file") {
		t.Fatalf("after its removal: %+v", got)
	}
}

// TestRead: a path that is not a file, and a file that is too large, are refused.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxSize+1); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, "/dev/zero", large, filepath.Join(dir, "none")} {
		if _, err := Read(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
}

// TestFixedFiles: files that are read at the start are checked together, with the flag in an error.
func TestFixedFiles(t *testing.T) {
	path, logger := filepath.Join(t.TempDir(), "config.yaml"), slog.New(slog.DiscardHandler)
	if _, err := Fixed("--config", path, logger); err == nil || !strings.HasPrefix(err.Error(), "--config "+path+": ") {
		t.Fatalf("without a file: %v", err)
	}
	write(t, path, "first")
	fixed, err := Fixed("--config", path, logger)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for _, files := range []Files{nil, {fixed}, {fixed, fixed}} {
		if err := files.Run(ctx); err != nil {
			t.Error(err)
		}
		if all := files.States(); len(all) != len(files) ||
			len(all) > 0 && all[0] != (State{Flag: "--config", Path: path, Hash: Hash([]byte("first"))}) {
			t.Errorf("%+v", all)
		}
	}
}

// FuzzCheck: a file is refused, or has the kind and a known version.
func FuzzCheck(f *testing.F) {
	kind := Kind{Name: "AuthenticationConfiguration",
		APIVersions: []string{"apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"}}
	for _, seed := range []string{
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n",
		`{"apiVersion":"apiserver.config.k8s.io/v1beta1","kind":"AuthenticationConfiguration"}`,
		"kind: x\nkind: AuthenticationConfiguration\n", "apiVersion: 1\nkind: [a]\n", "", "[]", "s3cret-value",
		"a: &a [*a]", "a: {s3cret-value", "\xff\xfe", "- s3cret-value\n",
		"KIND: AuthenticationConfiguration\napiversion: apiserver.config.k8s.io/v1\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if kind.Check(data) != nil {
			return
		}
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(data, &head); err != nil || head.Kind != kind.Name ||
			!slices.Contains(kind.APIVersions, head.APIVersion) {
			t.Errorf("%q was taken: %+v, %v", data, head, err)
		}
	})
}
