package enroll

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

func keyFilesIn(t *testing.T, dataDir string) (names []string) {
	t.Helper()
	for _, name := range credentials.KeyFiles() {
		switch info, err := os.Stat(filepath.Join(credentials.Dir(dataDir), name)); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil || info.Mode().Perm() != 0o600:
			t.Errorf("%s: %v, %v", name, info, err)
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

var (
	jointFiles    = []string{credentials.CAKey, credentials.ServiceAccountKey}
	separateFiles = slices.Sorted(maps.Values(credentials.KeyFiles()))
)

// TestANewClusterHasSeparateCAs, whether it begins empty or from a backup without keys. From a
// backup with keys it has the CAs of the backup: one for all of an earlier version.
func TestANewClusterHasSeparateCAs(t *testing.T) {
	var said syncbuf.Buffer
	begin := func(secrets map[string][]byte, restore bool) (*Record, *credentials.Home) {
		t.Helper()
		o := &Options{DataDir: t.TempDir(), Name: "s1",
			Settings: func(b json.RawMessage) (json.RawMessage, error) { return json.RawMessage("{}"), nil }}
		if restore {
			o.Restore = Restore{File: "backup"}
			o.ReadBackup = func() (Backup, error) {
				return Backup{ClusterID: "old", Settings: json.RawMessage("{}"), Secrets: secrets}, nil
			}
		}
		r, err := Server(t.Context(), o, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		home, err := credentials.LoadHome(o.DataDir, r)
		if err != nil {
			t.Fatal(err)
		}
		return r, home
	}
	want := func(what string, r *Record, home *credentials.Home, files []string, separate bool) {
		t.Helper()
		if got := keyFilesIn(t, r.Dir); !slices.Equal(got, files) {
			t.Errorf("%s: the keys are %q", what, got)
		}
		if b := r.CA(); b.Separate() != separate || separate && (len(b.Peers) != 1 || len(b.FrontProxy) != 1) {
			t.Errorf("%s: %+v", what, b)
		}
		for _, p := range pki.Purposes() {
			if _, err := home.Trust.CAsFor(p)[0].Key(); err != nil {
				t.Errorf("%s: it cannot issue for %s: %v", what, p, err)
			}
		}
	}
	first, home := begin(nil, false)
	want("new", first, home, separateFiles, true)
	secrets, err := clusterSecrets(first.Dir, first)
	if err != nil {
		t.Fatal(err)
	}
	again, home := begin(secrets, true)
	want("from a backup", again, home, separateFiles, true)
	if again.CA().Peers[0] != first.CA().Peers[0] || again.CA().FrontProxy[0] != first.CA().FrontProxy[0] {
		t.Error("a cluster from a backup has other CAs")
	}
	other, home := begin(nil, true)
	want("from a backup without keys", other, home, separateFiles, true)
	for _, name := range []string{credentials.PeersKey, credentials.FrontProxyKey} {
		lacks := maps.Clone(secrets)
		delete(lacks, name)
		if _, _, err := restoredCA(lacks); err == nil {
			t.Errorf("a backup without %s begins a cluster", name)
		}
	}

	if strings.Contains(said.String(), "one CA for all purposes") {
		t.Errorf("of separate CAs the log says %s", said.String())
	}
	// A backup of an earlier version.
	b := first.CA()
	b.Peers, b.FrontProxy = nil, nil
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	earlier := map[string][]byte{secretCA: text, secretGossip: secrets[secretGossip],
		credentials.CAKey:             secrets[credentials.CAKey],
		credentials.ServiceAccountKey: secrets[credentials.ServiceAccountKey]}
	old, home := begin(earlier, true)
	want("from a backup of before", old, home, jointFiles, false)
	if !strings.Contains(said.String(), "one CA for all purposes") {
		t.Errorf("of a backup of before the log says %s", said.String())
	}
}

// TestKeysOfBeforeGo: a server that joins anew has no keys but those of its cluster.
func TestKeysOfBeforeGo(t *testing.T) {
	o := &Options{DataDir: t.TempDir(), Join: "s1"}
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	grant := join.ServerGrant{Cluster: join.Cluster{CA: pki.NewBundle(ca)}, Keys: map[string][]byte{}}
	for _, name := range separateFiles {
		grant.Keys[name] = []byte("x")
	}
	for _, files := range [][]string{separateFiles, jointFiles, separateFiles} {
		for name := range grant.Keys {
			if !slices.Contains(files, name) {
				delete(grant.Keys, name)
			}
		}
		for _, name := range files {
			grant.Keys[name] = []byte("x")
		}
		if err := saveGrant(o, grant); err != nil {
			t.Fatal(err)
		}
		if got := keyFilesIn(t, o.DataDir); !slices.Equal(got, files) {
			t.Errorf("granted %q, and on the disk are %q", files, got)
		}
	}
}

// TestTheKeysOfPeersAreGranted: a server that joins in an exchange of the CA has the keys by which
// the others know each other, before it has the CAs. It has none of an earlier membership.
func TestTheKeysOfPeersAreGranted(t *testing.T) {
	o := &Options{DataDir: t.TempDir(), Join: "s1"}
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	path := admissions.PeersPath(o.DataDir)
	for _, granted := range []string{`{"format":1}`, ""} {
		grant := join.ServerGrant{Cluster: join.Cluster{CA: pki.NewBundle(ca)}, PeerKeys: json.RawMessage(granted)}
		if err := saveGrant(o, grant); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); string(got) != granted || err != nil && granted != "" {
			t.Errorf("granted are %q, and on the disk %q, %v", granted, got, err)
		}
	}
}

// TestThePlanOfAMachineThatJoinsAnew has a format of its own with CAs that earlier versions do not
// know: such a version, started in the middle, would carry it out without them.
func TestThePlanOfAMachineThatJoinsAnew(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	bundle := pki.NewBundle(ca)
	token, err := pki.NewToken(ca.Digest())
	if err != nil {
		t.Fatal(err)
	}
	for want, b := range map[int]pki.Bundle{rejoinFormat: bundle, rejoinCAsFormat: bundle.WithCA(pki.Peers, ca)} {
		o := &Options{DataDir: t.TempDir(), Name: "s1", Token: token.String()}
		if err := os.MkdirAll(credentials.DataKeysFile(o.DataDir), 0o700); err != nil { // which stops it in the middle
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(credentials.DataKeysFile(o.DataDir), "x"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := rejoinBy(o,
			rejoinPlan{Server: &join.ServerGrant{Cluster: join.Cluster{ID: "c1", CA: b}}}); err == nil {
			t.Fatal("the plan was carried out")
		}
		var is struct{ Format int }
		data, err := os.ReadFile(RejoinPath(o.DataDir))
		if err := errors.Join(err, json.Unmarshal(data, &is)); err != nil || is.Format != want {
			t.Errorf("the format is %d, want %d: %v", is.Format, want, err)
		}
		if err := os.RemoveAll(credentials.DataKeysFile(o.DataDir)); err != nil {
			t.Fatal(err)
		}
		if r, err := finishRejoin(o, pki.RoleServer, slog.New(slog.DiscardHandler)); err != nil || r == nil ||
			r.Cluster.ID != "c1" {
			t.Errorf("format %d: it is not finished: %v", want, err)
		}
	}
}
