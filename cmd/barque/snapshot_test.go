package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/cmd/barque/operators"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

// run runs a command line and returns its standard output, and its error.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd, out := root(), new(bytes.Buffer)
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(io.Discard)
	cmd.SetIn(strings.NewReader(""))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// exitCode is the one with which exitOn would end the process.
func exitCode(err error) int {
	var usage *command.UsageError
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return 2
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return 1
}

// kubeconfigOf writes a kubeconfig for a server that answers each request so.
func kubeconfigOf(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: '" + server.URL +
		"'}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// savedBackup writes a backup of a small store.
func savedBackup(t *testing.T) string {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { store.Close() })
	for _, key := range []string{"\x00raftstore/members", "/registry/a"} {
		// The store keeps the first key for itself, so it is only there when it can be written.
		if _, err := store.Put(context.Background(), key, []byte("x")); err != nil &&
			!errors.Is(err, raftstore.ErrInvalid) {
			t.Fatal(err)
		}
	}
	view, err := store.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.backup")
	_, err = backup.Save(path, nil, func(w io.Writer) error {
		_, err := backup.Write(w,
			backup.Source{View: view, About: backup.About{ClusterID: "c", Server: "s1", Created: time.Unix(1, 0)}}, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRestoreTellsItsEnd: the exit code of a restore shows the outcome.
func TestRestoreTellsItsEnd(t *testing.T) {
	file := savedBackup(t)
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for name, c := range map[string]struct {
		server http.HandlerFunc
		args   []string
		code   int
		says   string
	}{
		"done":            {answer(http.StatusOK, `{}`), []string{"--yes"}, 0, ""},
		"nobody said yes": {answer(http.StatusOK, `{}`), nil, exitcode.Refused, "give --yes"},
		"of another": {answer(http.StatusConflict, `{"error": "another cluster's"}`), []string{"--yes"},
			exitcode.Refused, "another cluster's"},
		"no rights": {answer(http.StatusForbidden, "forbidden: you"), []string{"--yes"}, 1, "forbidden: you"},
		"unknown": {answer(http.StatusServiceUnavailable, `{"error": "lost", "unknown": true}`),
			[]string{"--yes"}, exitcode.Unfinished, "may or may not"},
		"cut in the answer": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			[]string{"--yes"}, exitcode.Unfinished, "may or may not"},
	} {
		out, err := run(t,
			append([]string{"snapshot", "restore", file, "--kubeconfig", kubeconfigOf(t, c.server)}, c.args...)...)
		if exitCode(err) != c.code || (c.code != 0 && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: exit code %d, %v; want %d, with %q", name, exitCode(err), err, c.code, c.says)
		}
		if strings.Contains(out, "y/N") {
			t.Errorf("%s: the question is on standard output, which is the answer's", name)
		}
	}
}

// TestNoRights: the reason that a server gives reaches the user.
func TestNoRights(t *testing.T) {
	kubeconfig := kubeconfigOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w,
			`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "forbidden: you cannot do that", "reason": "Forbidden", "code": 403}`)
	})
	for _, args := range [][]string{{"cluster", "status", "--timeout", "2m"}, {"cluster", "members", "--timeout", "2m"},
		{"cluster", "transfer-leader"}, {"cluster", "remove", "s1", "--yes"}} {
		_, err := run(t, append(args, "--kubeconfig", kubeconfig)...)
		if err == nil || !strings.Contains(err.Error(), "403: forbidden: you cannot do that") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// TestWrongKubeconfig: the message tells that it is the kubeconfig which is wrong.
func TestWrongKubeconfig(t *testing.T) {
	for _, command := range []string{"status", "members", "transfer-leader"} {
		if _, err := run(t, "cluster", command, "--kubeconfig", "/nowhere/x"); err == nil ||
			!strings.Contains(err.Error(), "kubeconfig /nowhere/x") {
			t.Errorf("%s: %v", command, err)
		}
	}
}

// TestSnapshotPaths: a directory in place of a backup is distinguished from a damaged one, and no
// directory is made for a new one.
func TestSnapshotPaths(t *testing.T) {
	dir := t.TempDir()
	if _, err := run(t, "snapshot", "inspect", dir); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Error(err)
	}
	kubeconfig := kubeconfigOf(t, func(w http.ResponseWriter, _ *http.Request) { t.Error("the server was asked") })
	if _, err := run(t, "snapshot", "save", filepath.Join(dir, "slip", "x.backup"), "--kubeconfig",
		kubeconfig); err == nil {
		t.Error("saved into a directory that is not there")
	}
	if out, err := run(t, "snapshot", "inspect", savedBackup(t)); err != nil || strings.Contains(out, "\x00") {
		t.Errorf("%q, %v", out, err)
	}
}

// TestUnsealedBackupsAreRefusedUnasked: `snapshot save` without a key asks no server, and names the
// ways out. With --unsealed the server learns of the flag.
func TestUnsealedBackupsAreRefusedUnasked(t *testing.T) {
	var asked []string
	backup, err := os.ReadFile(savedBackup(t))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, string(body))
		_, _ = w.Write(backup)
	})
	path := filepath.Join(t.TempDir(), "x.backup")
	_, err = run(t, "snapshot", "save", path, "--kubeconfig", kubeconfig)
	if exitCode(err) != exitcode.Refused || !strings.Contains(err.Error(), "nothing was saved") ||
		!strings.Contains(err.Error(), "--key-file") || !strings.Contains(err.Error(), "--unsealed") {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	empty := filepath.Join(t.TempDir(), "empty.key")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, "snapshot", "save", path, "--key-file", empty, "--kubeconfig",
		kubeconfig); exitCode(err) != 1 || !strings.Contains(err.Error(), empty+" is empty") {
		t.Errorf("an empty file for a key: exit code %d: %v", exitCode(err), err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) || len(asked) > 0 {
		t.Errorf("the server was asked for %q; the file: %v", asked, err)
	}
	out, err := run(t, "snapshot", "save", path, "--unsealed", "--kubeconfig", kubeconfig)
	if err != nil || !strings.Contains(out, "saved and verified") || len(asked) != 1 ||
		asked[0] != `{"unsealed":true}` {
		t.Errorf("asked for %q: %v, %s", asked, err, out)
	}
	t.Setenv(operators.KeyVariable, "a passphrase that is long enough")
	if _, err := run(t, "snapshot", "save", path+"2", "--unsealed", "--kubeconfig", kubeconfig); exitCode(err) != 2 ||
		!strings.Contains(err.Error(), operators.KeyVariable) {
		t.Errorf("with a key: exit code %d: %v", exitCode(err), err)
	}
}

// TestSmallestStore: a limit that would stop all writes is a slip.
func TestSmallestStore(t *testing.T) {
	for text, good := range map[string]bool{"2Gi": true, "16Mi": true, "2": false, "1Ki": false, "x": false} {
		f := nodeFlags{
			options: options.Options{Times: options.DefaultTimes(), APIPort: 6443, GossipPort: 7946, KubeletPort: 10250,
				WireGuardPort: 51820}, storeMemory: text, logLevel: "info"}
		if _, err := f.complete(serverCommand()); (err == nil) != good || (!good && exitCode(err) != 2) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
