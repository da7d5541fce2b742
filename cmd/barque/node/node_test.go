package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/pki"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func testOptions(t *testing.T, name string) *options.Options {
	t.Helper()
	return &options.Options{DataDir: t.TempDir(), Name: name, CertificateLifetime: pki.LeafLifetime,
		Addresses: nodeaddr.Addresses{Internal: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		Settings:  options.DefaultSettings(), APIPort: 6443, PeerPort: 6444, GossipPort: 7946}
}

func TestARestartGoesOnWithItsCluster(t *testing.T) {
	o := testOptions(t, "s1")
	first, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if first.Phase != enroll.PhaseBootstrap {
		t.Fatalf("phase %q", first.Phase)
	}
	again, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if again.Cluster.ID != first.Cluster.ID {
		t.Fatalf("a second cluster %q was begun in the directory of %q", again.Cluster.ID, first.Cluster.ID)
	}
	settings, err := options.SettingsOf(again)
	if err != nil || !reflect.DeepEqual(settings, options.DefaultSettings()) {
		t.Fatalf("settings %+v, %v", settings, err)
	}
}

func TestADataDirectoryOfSomethingElseIsRefused(t *testing.T) {
	o := testOptions(t, "s1")
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewAuthority("other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := pki.NewToken(other.Digest())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*options.Options)
		want   string
	}{
		"another name": {func(o *options.Options) { o.Name = "s9" }, `belongs to node "s1"`},
		"another cluster": {func(o *options.Options) { o.Join, o.Token = "https://10.0.0.9:6443", foreign.String() },
			"has never run: if it was created by mistake, remove the directory"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := *o
			c.change(&changed)
			if _, err := enlistServer(t.Context(), &changed, quiet()); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v; want %q", err, c.want)
			}
		})
	}
	t.Run("another cluster than the one it runs in", func(t *testing.T) {
		running := &enroll.Record{Phase: enroll.PhaseMember, Name: "s1", Role: pki.RoleServer, Cluster: r.Cluster,
			Dir: o.DataDir}
		changed := *o
		changed.Join, changed.Token = "https://10.0.0.9:6443", foreign.String()
		if err := running.SameNode(changed.Enrolling(), pki.RoleServer); err == nil ||
			!strings.Contains(err.Error(), "another cluster") || strings.Contains(err.Error(), "mistake") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("as an agent", func(t *testing.T) {
		if _, err := enlistAgent(t.Context(), o, quiet()); err == nil ||
			!strings.Contains(err.Error(), "cannot run as agent") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("newer version", func(t *testing.T) {
		data, err := os.ReadFile(r.Path())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.Path(), []byte(strings.Replace(string(data), `"format": 6`, `"format": 7`, 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := enlistServer(t.Context(), o, quiet()); err == nil ||
			!strings.Contains(err.Error(), "newer Barque") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("damaged", func(t *testing.T) {
		if err := os.WriteFile(r.Path(), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := enlistServer(t.Context(), o, quiet()); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Fatalf("got %v", err)
		}
	})
}

func TestSecretsAreClosed(t *testing.T) {
	o := testOptions(t, "s1")
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	ids, err := credentials.NewServer(t.Context(), o.Certificates(o.Settings, r, nil, quiet()))
	if err != nil {
		t.Fatal(err)
	}
	if err := ids.Serving(t.Context()); err != nil {
		t.Fatal(err)
	}
	secrets := []string{"node.json", "pki/ca.key", "pki/service-account.key", "pki/peers-ca.key",
		"pki/front-proxy-ca.key", "pki/gossip.key", "admin.kubeconfig"}
	for _, name := range secrets {
		info, err := os.Stat(filepath.Join(o.DataDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v; want 0600", name, info.Mode().Perm())
		}
	}
}

func TestJoiningNeedsAToken(t *testing.T) {
	o := testOptions(t, "s2")
	o.Join = "https://127.0.0.1:1"
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil ||
		!strings.Contains(err.Error(), "barque token create") {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(o.DataDir, "node.json")); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("a failed join left a record behind")
	}
}

// joiner is a store that joins, or not.
type joiner struct {
	peers []string
	err   error
}

func (j *joiner) Join(_ context.Context, peers []string) error { j.peers = peers; return j.err }

func TestAJoinIsRecordedOnlyWhenItIsDone(t *testing.T) {
	dir := t.TempDir()
	r := &enroll.Record{Dir: dir, Phase: enroll.PhaseJoining, Name: "s2", Role: pki.RoleServer,
		Cluster: join.Cluster{Servers: []join.Server{{Name: "s1", Peer: netip.MustParseAddrPort("10.0.0.1:6444")}}}}
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	j := &joiner{err: errors.New("no")}
	if err := enroll.BecomeMember(t.Context(), r, j); err == nil {
		t.Fatal("a refused join succeeded")
	}
	if again, err := enroll.Load(dir); err != nil || again.Phase != enroll.PhaseJoining {
		t.Fatalf("after a failed join: %+v, %v", again, err)
	}
	j.err = nil
	if err := enroll.BecomeMember(t.Context(), r, j); err != nil {
		t.Fatal(err)
	}
	if again, err := enroll.Load(dir); err != nil || again.Phase != enroll.PhaseMember || len(j.peers) != 1 ||
		j.peers[0] != "10.0.0.1:6444" {
		t.Fatalf("after the join: %+v, %v; asked %v", again, err, j.peers)
	}
}

// Just after a start gossip shows only this server. The recorded servers must not be lost, or no
// server would be asked to join.
func TestKnownServersAreNotForgotten(t *testing.T) {
	at := func(name, addr string) join.Server {
		return join.Server{Name: name, API: netip.MustParseAddrPort(addr + ":6443")}
	}
	r := &enroll.Record{Dir: t.TempDir(),
		Cluster: join.Cluster{Servers: []join.Server{at("s1", "10.0.0.1"), at("s2", "10.0.0.2")}}}
	if err := r.Remember([]join.Server{at("s3", "10.0.0.3")}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Remember([]join.Server{at("s2", "10.0.0.22")}, nil); err != nil {
		t.Fatal(err)
	}
	again, err := enroll.Load(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []join.Server{at("s1", "10.0.0.1"), at("s2", "10.0.0.22"), at("s3", "10.0.0.3")}
	if !slices.Equal(again.Servers(), want) {
		t.Fatalf("got %+v; want %+v", again.Servers(), want)
	}
}
