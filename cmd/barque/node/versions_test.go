package node

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/skew"
	"github.com/barque/barque/pki"
)

// pretend makes this program one of another version until the test ends.
func pretend(t *testing.T, own string) {
	t.Helper()
	was := version.Version
	version.Version = own
	t.Cleanup(func() { version.Version = was })
}

// reported is the form in which a node of that version reports it.
func reported(own string) string {
	if own == "" {
		return "" // as some builds from before the first release
	}
	return version.Kubernetes + "+barque." + own
}

// gossiping is a server in a cluster's gossip, of a version.
func gossiping(
	t *testing.T, ca *pki.Authority, name, of string, seeds ...netip.AddrPort,
) (pool *gossip.Pool, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.3.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	credential, err := ca.SignCredential(
		pki.Credential{Name: name, Role: pki.RoleServer, Public: public, NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	pool, err = gossip.New(gossip.Config{
		Name: name, ClusterID: "c1", Advertise: at, Keys: [][]byte{make([]byte, 32)}, Authority: pki.TrustOf(ca),
		Facts:  gossip.Facts{APIPort: 6443, PeerPort: 6444, Version: reported(of)},
		Proof:  func() gossip.Proof { return gossip.Proof{Credential: credential, Key: private} },
		Seeds:  func() []netip.AddrPort { return seeds },
		Rejoin: 50 * time.Millisecond, Goodbye: 100 * time.Millisecond, Logger: quiet(),
		Tune: func(c *memberlist.Config) {
			c.GossipInterval, c.TCPTimeout, c.ProbeInterval = 10*time.Millisecond, 100*time.Millisecond,
				100*time.Millisecond
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := pool.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return pool, stop
}

// sees waits until the member lives in the pool, or lives no more.
func sees(t *testing.T, pool *gossip.Pool, name string, alive bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		changed := pool.Changed()
		if m, ok := pool.Member(name); ok && (m.State == gossip.Alive) == alive {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("in gossip %s is not alive: %t", name, alive)
		}
	}
}

// The policy of docs/upgrading.md at joining: the answers of a server that learns the others'
// versions from gossip, to machines of each role and version.
func TestVersionsAtJoining(t *testing.T) {
	const both, servers, later, behind = "", "servers may be one minor version apart",
		"an agent may not be of a later minor version than a server",
		"an agent may be one minor version behind the servers"
	for _, c := range []struct {
		role, joins string
		own, other  string // versions of the servers: the one that is asked, and another
		left        bool   // the other one has left
		why         string
	}{
		{pki.RoleServer, "v0.2.0", "v0.2.0", "v0.2.9", false, both},
		{pki.RoleServer, "v0.2.0-dev.g0bca91a6", "v0.2.0", "v0.2.0", false, both},
		{pki.RoleServer, "v0.3.0", "v0.2.0", "v0.2.0", false, both},
		{pki.RoleServer, "v0.1.0", "v0.2.0", "v0.2.0", false, both},
		{pki.RoleServer, "v0.1.0", "0bca91a6", "", false, both}, // builds from before the first release
		{pki.RoleServer, "v0.3.0", "v0.3.0", "v0.2.0", false, both},
		{pki.RoleServer, "v0.3.0", "v0.1.0", "v0.2.0", false, servers},
		{pki.RoleServer, "v0.3.0", "v0.2.0", "v0.1.0", false, servers},
		{pki.RoleServer, "v0.1.0", "v0.2.0", "v0.3.0", false, servers},
		{pki.RoleServer, "v0.3.0", "v0.2.0", "v0.1.0", true, both},
		{pki.RoleServer, "v0.2.0", "v0.1.0", "0bca91a6", false, servers},
		{pki.RoleAgent, "v0.2.0", "v0.2.0", "v0.2.0", false, both},
		{pki.RoleAgent, "v0.1.9", "v0.2.0", "v0.2.0", false, both},
		{pki.RoleAgent, "v0.1.0", "v0.2.0", "v0.1.0", false, both},
		{pki.RoleAgent, "v0.3.0", "v0.2.0", "v0.2.0", false, later},
		{pki.RoleAgent, "v0.2.0", "v0.2.0", "v0.1.0", false, later},
		{pki.RoleAgent, "v0.2.0", "v0.2.0", "v0.1.0", true, both},
		{pki.RoleAgent, "v0.1.0", "v0.3.0", "v0.3.0", false, behind},
		{pki.RoleAgent, "v0.1.0", "v0.2.0", "v0.3.0", false, behind},
	} {
		name := strings.Join([]string{c.role, c.joins, "to", c.own, c.other}, " ")
		if c.left {
			name += " (left)"
		}
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.keys = func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil }
			s := &server{options: testOptions(t, "s1")}
			var stop func()
			s.pool, _ = gossiping(t, h.ca, "s1", c.own)
			self, _ := s.pool.Member("s1")
			_, stop = gossiping(t, h.ca, "s2", c.other, self.Addr)
			sees(t, s.pool, "s2", true)
			if c.left {
				stop()
				sees(t, s.pool, "s2", false)
			}
			pretend(t, c.joins)
			h.fits = func(name, role, of string) error {
				defer func() { version.Version = c.joins }() // the machine that joins waits for the answer
				version.Version = c.own
				return s.versionFits(name, role, of)
			}
			o := testOptions(t, "n2")
			o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
			enlist := enlistServer
			if c.role == pki.RoleAgent {
				enlist = enlistAgent
			}
			r, err := enlist(t.Context(), o, quiet())
			switch {
			case c.why == "" && (err != nil || r.Version != reported(c.joins)):
				t.Errorf("got %+v, %v", r, err)
			case c.why != "" &&
				(err == nil || !strings.Contains(err.Error(), c.why) ||
					!strings.Contains(err.Error(), "docs/upgrading.md")):
				t.Errorf("got %v, want %q", err, c.why)
			case c.why != "" && len(h.attempts) != 0:
				t.Error("the token was used for a machine that was refused")
			}
		})
	}
}

// The same before anything is started: `barque cluster join` shows both versions, and refuses.
func TestVersionsBeforeJoining(t *testing.T) {
	for _, c := range []struct {
		role, own, served string
		passes            bool
	}{
		{pki.RoleServer, "v0.2.0", "v0.2.0", true},
		{pki.RoleServer, "v0.2.0", "v0.1.0", true},
		{pki.RoleServer, "v0.2.0", "v0.3.0", true},
		{pki.RoleServer, "v0.3.0", "v0.1.0", false},
		{pki.RoleServer, "v0.1.0", "v0.3.0", false},
		{pki.RoleAgent, "v0.1.0", "v0.2.0", true},
		{pki.RoleAgent, "v0.2.0", "v0.1.0", false},
		{pki.RoleAgent, "v0.1.0", "v0.3.0", false},
	} {
		t.Run(strings.Join([]string{c.role, c.own, "to", c.served}, " "), func(t *testing.T) {
			h := newHost(t)
			h.version = reported(c.served)
			pretend(t, c.own)
			o := testOptions(t, "n2")
			o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
			findings := enroll.Preflight(t.Context(), o.Enrolling(), c.role, time.Now)
			i := slices.IndexFunc(findings, func(f check.Finding) bool { return f.Name == "version" })
			if i < 0 {
				t.Fatalf("versions are not judged: %+v", findings)
			}
			f := findings[i]
			if f.OK != c.passes || !strings.Contains(f.Detail, c.own) || !strings.Contains(f.Detail, c.served) {
				t.Errorf("got %+v", f)
			}
			// A start applies the same, though this server, like an earlier one, would take it.
			enlist := enlistServer
			if c.role == pki.RoleAgent {
				enlist = enlistAgent
			}
			_, err := enlist(t.Context(), o, quiet())
			var misfit *skew.Error
			if errors.As(err, &misfit) == c.passes || len(h.attempts) > 0 && !c.passes {
				t.Errorf("a start: %v; the token was used %d times", err, len(h.attempts))
			}
		})
	}
}

// The same at a start: which versions may use a data directory. One that may not leaves it as it
// is.
func TestVersionsAtStart(t *testing.T) {
	for _, c := range []struct{ role, last, own, why string }{
		{pki.RoleServer, "v0.2.0", "v0.2.1", ""},
		{pki.RoleServer, "v0.2.0", "v0.3.0", ""},
		{pki.RoleServer, "v0.2.0", "v0.1.0", ""},
		{pki.RoleServer, "", "v0.1.0", ""},
		{pki.RoleServer, "v0.1.0", "v0.3.0", "start the next minor version after v0.1 first"},
		{pki.RoleServer, "v0.3.0", "v0.1.0", "start the version that used it last, v0.3.0"},
		{pki.RoleServer, "", "v0.2.0", "start the next minor version after v0.0 first"},
		{pki.RoleAgent, "v0.2.0", "v0.1.0", ""},
		{pki.RoleAgent, "v0.1.0", "v0.4.0", ""},
		{pki.RoleAgent, "v0.3.0", "v0.1.0", "start the version that used it last, v0.3.0"},
	} {
		t.Run(strings.Join([]string{c.role, "from", c.last, "to", c.own}, " "), func(t *testing.T) {
			h := newHost(t)
			o := testOptions(t, "n2")
			pretend(t, c.last)
			r := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseMember, Name: "n2", Role: c.role,
				Cluster: join.Cluster{ID: "c1", CA: pki.NewBundle(h.ca)}}
			path := filepath.Join(o.DataDir, "node.json")
			if err := r.Save(); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			version.Version = c.own
			enlist := enlistServer
			if c.role == pki.RoleAgent {
				enlist = enlistAgent
			}
			_, err = enlist(t.Context(), o, quiet())
			if c.why == "" {
				if now, loadErr := enroll.Load(o.DataDir); err != nil || loadErr != nil ||
					now.Version != reported(c.own) {
					t.Errorf("got %v; the directory has %+v, %v", err, now, loadErr)
				}
				return
			}
			var of *skew.Error
			if !errors.As(err, &of) || !strings.Contains(err.Error(), c.why) ||
				!strings.Contains(err.Error(), o.DataDir) {
				t.Errorf("got %v, want %q", err, c.why)
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != string(before) {
				t.Errorf("the record was changed: %v", err)
			}
		})
	}
}
