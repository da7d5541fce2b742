package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// joinFiles are the files of a join, in the order of writing. A killed machine has the first ones.
var joinFiles = map[string][]string{
	pki.RoleServer: {"node.json", "pki/join.attempt", "pki/ca.key", "pki/service-account.key", "pki/ca.crt",
		"node.json"},
	pki.RoleAgent: {"pki/node.key", "pki/gossip.key", "pki/join.attempt", "pki/node-client.crt",
		"pki/node-serving.crt", "pki/gossip.credential", "pki/ca.crt", "node.json"},
}

// A machine that is killed at any moment of its join continues when it is started again. It never
// begins its own cluster, and costs the token one use. An interrupted try that is not repeated
// blocks nothing.
func TestAJoinGoesOnAfterAKillAtEachStep(t *testing.T) {
	for role, files := range joinFiles {
		enlist := enlistServer
		if role == pki.RoleAgent {
			enlist = enlistAgent
		}
		h := newHost(t)
		keys := map[string][]byte{"ca.key": []byte("the CA's"), "service-account.key": []byte("the accounts'")}
		h.keys = func() (map[string][]byte, error) { return keys, nil }
		whole := testOptions(t, "n2")
		whole.Join, whole.Token = "https://"+h.addr.String(), h.token.String()
		asking := askingFiles(t, h, whole, role)
		if _, err := enlist(t.Context(), whole, quiet()); err != nil {
			t.Fatal(err)
		}
		checkComplete(t, role, whole.DataDir, files)
		for killed := range len(files) + 1 {
			o := *whole
			o.DataDir = t.TempDir()
			for i, name := range files[:killed] {
				from := filepath.Join(whole.DataDir, name)
				if data, ok := asking[name]; ok && (name != "node.json" || i == 0) {
					put(t, filepath.Join(o.DataDir, name), data)
					continue
				}
				data, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				put(t, filepath.Join(o.DataDir, name), data)
			}
			where := role + " killed after " + strings.Join(files[:killed], ", ")

			alone := o
			alone.Join, alone.Token = "", ""
			before := listFiles(t, o.DataDir)
			r, err := enlist(t.Context(), &alone, quiet())
			switch begun := killed > 0 || role == pki.RoleAgent; {
			case err == nil && r.Cluster.ID != "c1" && begun:
				t.Errorf("%s: a second cluster was begun", where)
			case err == nil && r.Cluster.ID == "c1" && killed < len(files):
				t.Errorf("%s: it takes itself for a member", where)
			case err != nil && !slices.Equal(listFiles(t, o.DataDir), before):
				t.Errorf("%s: a start that was refused changed files", where)
			}
			if killed == 0 {
				continue
			}
			counted := len(h.attempts)
			if r, err := enlist(t.Context(), &o, quiet()); err != nil || r.Cluster.ID != "c1" {
				t.Errorf("%s: started again: %v", where, err)
				continue
			}
			checkComplete(t, role, o.DataDir, files)
			if i := slices.Index(files, "pki/join.attempt"); len(h.attempts) > counted && killed > i &&
				h.attempts[counted].Secret != attemptBy(t, asking["pki/join.attempt"]) {
				t.Errorf("%s: the token is used a second time", where)
			}
			if again, err := enlist(t.Context(), &alone, quiet()); err != nil || again.Cluster.ID != "c1" {
				t.Errorf("%s: the start after it: %v", where, err)
			}
		}
	}
}

// attemptBy is the attempt to a server of the machine with that text.
func attemptBy(t *testing.T, text []byte) string {
	t.Helper()
	key, err := pki.SealingKeyOf(string(text))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(key.Public())
	return hex.EncodeToString(sum[:])
}

// askingFiles are the files of a machine whose try was interrupted before the server had answered.
func askingFiles(t *testing.T, h *host, like *options.Options, role string) map[string][]byte {
	t.Helper()
	o := *like
	o.DataDir = t.TempDir()
	keys, cluster := h.keys, h.fail
	h.fail = errors.New("the connection breaks")
	defer func() { h.keys, h.fail = keys, cluster }()
	var err error
	if role == pki.RoleServer {
		_, err = enlistServer(t.Context(), &o, quiet())
	} else {
		_, err = enlistAgent(t.Context(), &o, quiet())
	}
	if err == nil {
		t.Fatal("joined although the connection breaks")
	}
	files := map[string][]byte{}
	for _, name := range listFiles(t, o.DataDir) {
		if files[name], err = os.ReadFile(filepath.Join(o.DataDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// checkComplete checks that the directory has exactly the files of a join.
func checkComplete(t *testing.T, role, dir string, files []string) {
	t.Helper()
	want := slices.Clone(files)
	slices.Sort(want)
	want = slices.DeleteFunc(slices.Compact(want), func(name string) bool { return name == "pki/join.attempt" })
	if got := listFiles(t, dir); !slices.Equal(got, want) {
		t.Errorf("%s: the files are %v, want %v", role, got, want)
	}
}

func listFiles(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			out = append(out, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// A node with data that is killed at any moment of its rejoin belongs to one cluster: the old one,
// or the one that has admitted it, also if it is started without the flags.
func TestJoiningAgainGoesOnAfterAKillAtEachStep(t *testing.T) {
	for role, files := range map[string][]string{
		pki.RoleServer: {"pki/rejoin.json", "pki/ca.key", "pki/service-account.key", "pki/ca.crt", "node.json"},
		pki.RoleAgent: {"pki/rejoin.json", "pki/node-client.crt", "pki/node-serving.crt", "pki/gossip.credential",
			"pki/ca.crt", "node.json"},
	} {
		h := newHost(t)
		keys := map[string][]byte{"ca.key": []byte("the new CA's"), "service-account.key": []byte("the new accounts'")}
		h.keys = func() (map[string][]byte, error) { return keys, nil }
		old, err := pki.NewAuthority("c1", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		h.was = []string{old.Digest()}
		begin := func() *options.Options {
			o := testOptions(t, "n2")
			r := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseMember, Name: "n2", Role: role,
				Cluster: join.Cluster{ID: "before", CA: pki.NewBundle(old)}}
			for _, name := range files[1 : len(files)-1] {
				put(t, filepath.Join(o.DataDir, name), []byte("before"))
			}
			if err := r.Save(); err != nil {
				t.Fatal(err)
			}
			return o
		}
		enlist := enlistServer
		if role == pki.RoleAgent {
			enlist = enlistAgent
		}
		whole := begin()
		whole.Join, whole.Token, whole.Wipe, whole.Rejoin = "https://"+h.addr.String(), h.token.String(), true, true
		// A directory in the place of the last file is where it stops.
		last := filepath.Join(whole.DataDir, "node.json")
		record, err := os.ReadFile(last)
		if err != nil {
			t.Fatal(err)
		}
		stopAt := filepath.Join(whole.DataDir, "pki", "ca.crt")
		if err := errors.Join(os.Remove(stopAt), os.MkdirAll(filepath.Join(stopAt, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
		if _, err := enlist(t.Context(), whole, quiet()); err == nil {
			t.Fatalf("%s: it did not stop", role)
		}
		if now, err := os.ReadFile(last); err != nil || !bytes.Equal(now, record) {
			t.Fatalf("%s: the record came before the rest: %v", role, err)
		}
		if err := os.RemoveAll(stopAt); err != nil {
			t.Fatal(err)
		}
		h.fail = errors.New("the token is used up")
		for killed := range 2*len(files) - 1 {
			o, withFlags := begin(), killed >= len(files)
			if withFlags { // that costs no use of the token
				killed -= len(files) - 1
				o.Join, o.Token, o.Wipe, o.Rejoin = whole.Join, whole.Token, true, true
			}
			for _, name := range files[:killed] {
				data, err := os.ReadFile(filepath.Join(whole.DataDir, name))
				if errors.Is(err, os.ErrNotExist) { // ca.crt, which is made from the plan again
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				put(t, filepath.Join(o.DataDir, name), data)
			}
			want := "c1"
			if killed == 0 {
				want = "before"
			}
			r, err := enlist(t.Context(), o, quiet())
			if err != nil || r.Cluster.ID != want {
				t.Errorf("%s killed after %v, with flags %v: %+v, %v", role, files[:killed], withFlags, r, err)
				continue
			}
			for _, name := range files[1 : len(files)-1] {
				data, err := os.ReadFile(filepath.Join(o.DataDir, name))
				if err != nil || (string(data) == "before") != (want == "before") {
					t.Errorf("%s killed after %v: %s is %q, %v", role, files[:killed], name, data, err)
				}
			}
			if _, err := os.Stat(enroll.RejoinPath(o.DataDir)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s killed after %v: the plan: %v", role, files[:killed], err)
			}
			if killed > 0 {
				checkSpent(t, enlist, o, filepath.Join(whole.DataDir, "pki", "rejoin.json"))
			}
		}
	}
}

// checkSpent checks that a finished plan changes nothing when it reappears, as after a power loss.
func checkSpent(
	t *testing.T, enlist func(context.Context, *options.Options, *slog.Logger) (*enroll.Record, error),
	o *options.Options, plan string,
) {
	t.Helper()
	data, err := os.ReadFile(plan)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := enroll.Load(o.DataDir); err != nil {
		t.Fatal(err)
	} else if o.Wipe && r.Role == pki.RoleServer {
		if r, err := enlist(t.Context(), o, quiet()); err != nil || r.Phase != enroll.PhaseJoining {
			t.Errorf("started again with the flags: %+v, %v", r, err)
		}
	}
	r, err := enroll.Load(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	o.Wipe, o.Rejoin, o.Token, o.Join = false, false, "", ""
	r.Phase = enroll.PhaseMember
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	kept := []string{filepath.Join(enroll.StoreDir(o.DataDir), "log"), credentials.CAFile(o.DataDir)}
	for _, path := range kept {
		put(t, path, []byte("since"))
	}
	put(t, enroll.RejoinPath(o.DataDir), data)
	if r, err := enlist(t.Context(), o, quiet()); err != nil || r.Phase != enroll.PhaseMember {
		t.Errorf("a plan that came back: %+v, %v", r, err)
	}
	for _, path := range kept {
		if now, err := os.ReadFile(path); err != nil || string(now) != "since" {
			t.Errorf("a plan that came back has changed %s: %q, %v", path, now, err)
		}
	}
	if _, err := os.Stat(enroll.RejoinPath(o.DataDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the plan that came back: %v", err)
	}
}
