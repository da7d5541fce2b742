package node

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// host serves the joining protocol of a cluster as its only server does.
type host struct {
	ca         *pki.Authority
	token      pki.Token
	was        []string // digests of CAs that the cluster had before
	keys       func() (map[string][]byte, error)
	addr       netip.AddrPort
	gossipPort uint16
	settings   json.RawMessage                        // of the cluster
	taken      error                                  // why a name is
	version    string                                 // that it serves
	fits       func(name, role, version string) error // nil: all do

	fail     error           // why a join breaks off, after its use was counted
	attempts []token.Attempt // that were counted
	gone     error           // why a node gets no new certificates after its own have expired

	busy  atomic.Int64 // requests that were told to retry
	clock atomic.Int64 // the server's, as a time.Duration after now; limits go by it
}

func newHost(t *testing.T) *host {
	t.Helper()
	ca, err := pki.NewAuthority("c1", time.Now().Add(-400*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	h, begin := &host{ca: ca}, time.Now()
	if h.token, err = pki.NewToken(ca.Digest()); err != nil {
		t.Fatal(err)
	}
	handler := join.NewHandler(join.Config{
		Authority:  pki.TrustOf(ca),
		Lifetime:   func() time.Duration { return pki.LeafLifetime },
		Grace:      options.DefaultCertificateGrace,
		StillNode:  func(context.Context, string, time.Time) error { return h.gone },
		Barred:     func(string, string) error { return nil },
		CheckToken: func(context.Context, token.Proof, token.Attempt) error { return nil },
		UseToken: func(_ context.Context, _ token.Proof, a token.Attempt) error {
			h.attempts = append(h.attempts, a)
			return h.fail
		},
		AddressTaken: func(string, netip.Addr) error { return nil },
		OfAPI:        func(string, netip.Addr) error { return nil },
		IsAt:         func(string, netip.Addr) bool { return false },
		NameTaken:    func(string) error { return h.taken },
		VersionFits: func(name, role, version string) error {
			if h.fits == nil {
				return nil
			}
			return h.fits(name, role, version)
		},
		Replace: func(context.Context, string) error { h.taken = nil; return nil },
		Cluster: func() join.Cluster {
			b := pki.NewBundle(ca)
			b.Former = h.was
			return join.Cluster{ID: "c1", CA: b, Servers: []join.Server{{Name: "s1", API: h.addr}},
				GossipPort: h.gossipPort, Settings: h.settings}
		},
		Keys:   func() (map[string][]byte, error) { return h.keys() },
		Logger: quiet(), Now: func() time.Time { return begin.Add(time.Duration(h.clock.Load())) },
	})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			fmt.Fprintf(w, `{"gitVersion":%q}`, h.version)
			return
		}
		handler.ServeHTTP(&countBusy{w, h}, r)
	}))
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	serving, err := identity.New(t.Context(),
		identity.Config{Name: "s1", Key: key, Now: time.Now, Logger: quiet(),
			Issue: pki.TrustOf(ca).Signs(func() pki.Request {
				return pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization},
					Usage: pki.Server,
					Names: []string{"127.0.0.1"}}
			}, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*serving.Certificate()}, ClientAuth: tls.RequestClientCert}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	h.addr = server.Listener.Addr().(*net.TCPAddr).AddrPort()
	return h
}

// countBusy counts answers that ask for a retry. With each, time advances by the cost of one more
// request.
type countBusy struct {
	http.ResponseWriter
	h *host
}

func (w *countBusy) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *countBusy) WriteHeader(status int) {
	if status == http.StatusTooManyRequests {
		w.h.busy.Add(1)
		w.h.clock.Add(int64(250 * time.Millisecond)) // four a second are served
	}
	w.ResponseWriter.WriteHeader(status)
}

// An agent whose server has too many requests to join retries each of its requests at the given
// time.
func TestAnAgentJoinsABusyServer(t *testing.T) {
	h := newHost(t)
	o := testOptions(t, "a1")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	for n := 0; h.busy.Load() == 0; n++ {
		if _, err := join.FetchCA(t.Context(), o.Join, h.token); err != nil && h.busy.Load() == 0 || n > 1000 {
			t.Fatalf("request %d: %v", n, err)
		}
	}
	if _, err := join.FetchCA(t.Context(), o.Join, h.token); err != nil { // the allowance that the clock has just added
		t.Fatal(err)
	}
	h.busy.Store(0)
	r, err := enlistAgent(t.Context(), o, quiet())
	if err != nil || r.Phase != enroll.PhaseMember {
		t.Fatalf("got %+v, %v", r, err)
	}
	if busy := h.busy.Load(); busy != 2 {
		t.Errorf("the agent was told %d times to come again, want one for each of its requests", busy)
	}
	if len(h.attempts) != 1 {
		t.Errorf("the token was used %d times", len(h.attempts))
	}
	// A caller that does not wait gets the reason.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("it was stopped"))
	var refused *join.RefusedError
	_, err = join.RetryWhenBusy(ctx, quiet(),
		func() (*pki.Authority, error) { return join.FetchCA(t.Context(), o.Join, h.token) })
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "it was stopped") ||
		!strings.Contains(err.Error(), "too many requests to join") {
		t.Errorf("stopped meanwhile: %v", err)
	}
}

// An agent that starts again before it is registered, as for its cluster's profile, still has to
// wait for that before a server gives it keys.
func TestAnAgentIsFreshUntilItIsRegistered(t *testing.T) {
	h := newHost(t)
	o := testOptions(t, "a1")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	for _, start := range []string{"it joins", "it starts again"} {
		r, err := enlistAgent(t.Context(), o, quiet())
		if err != nil || !r.Fresh {
			t.Fatalf("%s: %+v, %v; want it fresh", start, r, err)
		}
	}
	r, err := enroll.Load(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Registered(); err != nil {
		t.Fatal(err)
	}
	if r, err = enlistAgent(t.Context(), o, quiet()); err != nil || r.Fresh {
		t.Errorf("registered: %+v, %v", r, err)
	}
}

// An agent whose keys were removed joins again with others.
func TestAnAgentJoinsAgainWithOtherKeys(t *testing.T) {
	h := newHost(t)
	a := joinedAgent(t, h, 0)
	o := a.options
	o.Join, o.Token, o.Rejoin = "https://"+h.addr.String(), h.token.String(), true
	was := map[string][]byte{}
	for _, name := range []string{"node.key", "gossip.key"} {
		path := filepath.Join(credentials.Dir(o.DataDir), name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		was[path] = data
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.enlist(t.Context()); err != nil { // with certificates for the new keys, or it fails
		t.Fatal(err)
	}
	for path, old := range was {
		if data, err := os.ReadFile(path); err != nil || bytes.Equal(data, old) {
			t.Errorf("%s is as it was: %v", path, err)
		}
	}
}

// A server that was killed while it asked for admission must never begin its own cluster.
func TestAJoinerThatWasKilledDoesNotBeginACluster(t *testing.T) {
	h := newHost(t)
	o := testOptions(t, "s2")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	h.keys = func() (map[string][]byte, error) { panic("the joiner's connection breaks") }
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil {
		t.Fatal("joined without an answer")
	}
	alone := *o
	alone.Join, alone.Token = "", ""
	if r, err := enlistServer(t.Context(), &alone, quiet()); err == nil || !strings.Contains(err.Error(), o.Join) {
		t.Fatalf("got %+v, %v", r, err)
	}
	h.keys = func() (map[string][]byte, error) { return nil, nil }
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil || r.Phase != enroll.PhaseJoining || r.Cluster.ID != "c1" {
		t.Fatalf("the second try: %+v, %v", r, err)
	}
	if r, err = enlistServer(t.Context(), &alone, quiet()); err != nil || r.Phase != enroll.PhaseJoining {
		t.Fatalf("a restart goes on without a token: %+v, %v", r, err)
	}
}

// joinedAgent is an agent of the host's cluster with certificates for a year, issued that long ago.
func joinedAgent(t *testing.T, h *host, ago time.Duration) *agent {
	t.Helper()
	o := testOptions(t, "a1")
	gossip, err := credentials.GossipKeyOf(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.LoadOrCreateKey(filepath.Join(credentials.Dir(o.DataDir), "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	longAgo := time.Now().Add(-ago)
	issue := func(r pki.Request) []byte {
		cert, err := h.ca.Issue(r, key.Public(), longAgo)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	credential, err := h.ca.SignCredential(
		pki.Credential{Name: "a1", Role: pki.RoleAgent, Public: gossip.Public().(ed25519.PublicKey),
			NotAfter: longAgo.Add(pki.LeafLifetime)})
	if err != nil {
		t.Fatal(err)
	}
	if err := credentials.SaveCertificates(o.DataDir,
		join.Certificates{Client: issue(join.NodeClient("a1")), Serving: issue(join.NodeServing("a1", o.Addr())),
			Credential: credential}); err != nil {
		t.Fatal(err)
	}
	r := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseMember, Name: "a1", Role: pki.RoleAgent,
		Cluster: join.Cluster{ID: "c1", CA: pki.NewBundle(h.ca), Settings: []byte("{}"),
			Servers: []join.Server{{Name: "s1", API: h.addr}}}}
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	return &agent{options: o, logger: quiet(), stack: lifecycle.New(quiet())}
}

// An agent that was off while its certificates came near their end, or ended, gets new ones when it
// starts.
func TestAnAgentThatStartsLateRenews(t *testing.T) {
	for _, days := range []time.Duration{300, 380} {
		h := newHost(t)
		a := joinedAgent(t, h, days*24*time.Hour)
		if err := a.enlist(t.Context()); err != nil {
			t.Fatal(err)
		}
		soon := time.Now().Add(360 * 24 * time.Hour)
		for _, i := range []*identity.Identity{a.ids.Client, a.ids.Serving} {
			if !i.Term().NotAfter.After(soon) {
				t.Errorf("after %d days, the certificate %s ends at %v", days, i.Name(), i.Term().NotAfter)
			}
		}
		if shown, err := h.ca.VerifyCredential(a.ids.GossipProof().Credential, time.Now()); err != nil ||
			!shown.NotAfter.After(soon) {
			t.Errorf("after %d days, gossip is shown %+v, %v", days, shown, err)
		}
		again, err := credentials.LoadAgent(
			credentials.AgentConfig{Address: a.options.Addr(), DataDir: a.options.DataDir, Record: a.record,
				Logger: quiet()})
		if err != nil || !again.Client.Term().NotAfter.Equal(a.ids.Client.Term().NotAfter) {
			t.Errorf("after %d days, the next start has another certificate: %v", days, err)
		}
	}
}

// An agent that was removed meanwhile, or was off for too long, gets the way to come back.
func TestAnAgentThatGetsNoNewCertificatesSaysWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		days time.Duration
		gone error
		want string
	}{
		"removed": {380, join.ErrRemoved, "was removed from the cluster"},
		"too old": {380 + 90, nil, "longer ago than a new one is given for it"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.gone = c.gone
			a := joinedAgent(t, h, c.days*24*time.Hour)
			err := a.enlist(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(),
					"barque agent --rejoin --server https://"+h.addr.String()+" --token TOKEN") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// While no server answers, or none knows yet, an agent without valid certificates waits.
func TestAnAgentWaitsForAServerThatGivesItNewCertificates(t *testing.T) {
	h := newHost(t)
	h.gone = errors.New("the store is unavailable")
	a := joinedAgent(t, h, 380*24*time.Hour)
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, enough) // brief: it waits until then
	defer cancel()
	if err := a.enlist(ctx); err == nil || err.Error() != "enough" {
		t.Errorf("got %v", err)
	}
}

// With a certificate for a name or an address of the API a node could pass for the API server.
func TestNodesGetNoNameOfTheAPI(t *testing.T) {
	s := &server{options: testOptions(t, "s1"), settings: options.DefaultSettings()}
	s.options.Serving.API = &secureport.Options{
		SANs: []string{"*.k8s.corp", "API.example.com", "10.0.0.100", "::ffff:10.0.0.101", "fd00::100"}}
	for _, name := range []string{"kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"localhost"} {
		if err := s.nameTaken(name); err == nil || !strings.Contains(err.Error(), "--name") {
			t.Errorf("a node may be called %s, or does not hear of --name: %v", name, err)
		}
	}
	for _, addr := range []string{"10.43.0.1", "10.42.7.7"} {
		if err := s.addressTaken("a1", netip.MustParseAddr(addr)); err == nil ||
			!strings.Contains(err.Error(), "--node-ip") {
			t.Errorf("a node may have the address %s, or does not hear of --node-ip: %v", addr, err)
		}
	}
	for _, name := range []string{"api.k8s.corp", "api.example.com"} {
		if err := s.ofAPI(name, netip.MustParseAddr("10.0.0.9")); err == nil ||
			!strings.Contains(err.Error(), "--name") {
			t.Errorf("an agent may be called %s, or does not hear of --name: %v", name, err)
		}
	}
	for _, addr := range []string{"10.0.0.100", "10.0.0.101", "fd00::100"} {
		if err := s.ofAPI("a1", netip.MustParseAddr(addr)); err == nil || !strings.Contains(err.Error(), "--node-ip") {
			t.Errorf("an agent may have the address %s, or does not hear of --node-ip: %v", addr, err)
		}
	}
	for _, other := range []string{"k8s.corp", "a.b.k8s.corp", "example.com", "x.api.example.com"} {
		if san, ok := s.options.Serving.SANOf(other); ok {
			t.Errorf("%s is taken for a name of the API, by %s", other, san)
		}
	}
}

// A server whose store is not needed joins as a new one; the next start finishes an interrupted
// change, with or without the flag.
func TestWipe(t *testing.T) {
	h := newHost(t)
	h.keys = func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil }
	o := testOptions(t, "s2")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	old := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseMember, Name: "s2", Role: pki.RoleServer,
		Cluster: join.Cluster{ID: "before", CA: pki.NewBundle(h.ca)}}
	lived := filepath.Join(enroll.StoreDir(o.DataDir), "server.json")
	begin := func() {
		t.Helper()
		if err := errors.Join(old.Save(), os.MkdirAll(enroll.StoreDir(o.DataDir), 0o700),
			os.WriteFile(lived, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	if r, err := enlistServer(t.Context(), o, quiet()); err != nil || r.Phase != enroll.PhaseMember {
		t.Fatalf("without --wipe: %+v, %v", r, err)
	}
	o.Wipe = true
	h.taken = errors.New("a server named s2 is a member of the store")
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil ||
		!strings.Contains(err.Error(), "nothing was wiped") {
		t.Fatalf("a member was wiped: %v", err)
	}
	if _, err := os.Stat(lived); err != nil {
		t.Fatal(err)
	}
	h.taken = nil
	check := func(o *options.Options) {
		t.Helper()
		r, err := enlistServer(t.Context(), o, quiet())
		if err != nil || r.Phase != enroll.PhaseJoining || r.Cluster.ID != "c1" {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := os.Stat(lived); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the old store: %v", err)
		}
		if again, err := enroll.Load(o.DataDir); err != nil || again.Phase != enroll.PhaseJoining {
			t.Errorf("on disk %+v, %v", again, err)
		}
	}
	check(o)
	begin()
	crashed := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseWiping, Name: "s2", Role: pki.RoleServer,
		Cluster: join.Cluster{ID: "c1", CA: pki.NewBundle(h.ca)}}
	if err := crashed.Save(); err != nil {
		t.Fatal(err)
	}
	plain := *o
	plain.Wipe, plain.Join, plain.Token = false, "", ""
	check(&plain)
}

// A unit may keep the arguments of a node's first start. Used ones are ignored, also when the
// token's file is gone or the cluster has another CA. A token that was not used counts, and so does
// the mark that the store is needed no more.
func TestArgumentsThatAreUsedUp(t *testing.T) {
	used := errors.New("this token has no uses left")
	for _, role := range []string{pki.RoleServer, pki.RoleAgent} {
		for _, first := range []string{"empty directory", "let in again", "let in again by an earlier version"} {
			t.Run(role+", "+first, func(t *testing.T) {
				h := newHost(t)
				h.keys = func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil }
				o := testOptions(t, "n2")
				o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
				enlist := enlistServer
				if role == pki.RoleAgent {
					enlist, o.Rejoin = enlistAgent, true
				} else {
					o.Wipe, o.Replace = true, true
				}
				if first != "empty directory" {
					old := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseMember, Name: "n2", Role: role,
						Cluster: join.Cluster{ID: "c1", CA: pki.NewBundle(h.ca)}}
					if err := old.Save(); err != nil {
						t.Fatal(err)
					}
				}
				r, err := enlist(t.Context(), o, quiet())
				if err != nil {
					t.Fatal(err)
				}
				r.Phase = enroll.PhaseMember
				if first == "let in again by an earlier version" {
					r.Spent = ""
				}
				data := filepath.Join(enroll.StoreDir(o.DataDir), "log")
				if err := errors.Join(r.Save(), os.MkdirAll(filepath.Dir(data), 0o700),
					os.WriteFile(data, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
				h.fail, h.taken = used, errors.New("a server named n2 is a member of the store")
				starts := func(o *options.Options) {
					t.Helper()
					r, err := enlist(t.Context(), o, quiet())
					if err != nil || r.Phase != enroll.PhaseMember {
						t.Errorf("with used arguments: %+v, %v", r, err)
					}
					if _, err := os.Stat(data); err != nil {
						t.Errorf("its data: %v", err)
					}
				}
				starts(o)
				gone := *o
				gone.Token = ""
				starts(&gone)
				other, err := pki.NewToken(h.ca.Digest())
				if err != nil {
					t.Fatal(err)
				}
				anew := *o
				anew.Token = other.String()
				if _, err := enlist(t.Context(), &anew, quiet()); err == nil {
					t.Error("a token that was not used was ignored")
				}
				newer, err := pki.NewAuthority("c1", time.Now())
				if err != nil {
					t.Fatal(err)
				}
				if r, err = enroll.Load(o.DataDir); err != nil {
					t.Fatal(err)
				}
				r.Cluster.CA = pki.NewBundle(newer)
				if err := r.Save(); err != nil {
					t.Fatal(err)
				}
				starts(o)
				if role == pki.RoleAgent {
					return
				}
				if err := os.WriteFile(filepath.Join(enroll.StoreDir(o.DataDir), "removed.json"), []byte("{}"),
					0o600); err != nil {
					t.Fatal(err)
				}
				if _, err := enlist(t.Context(), o, quiet()); err == nil ||
					!strings.Contains(err.Error(), "nothing was wiped") {
					t.Errorf("a removed server did not ask to be let in: %v", err)
				}
			})
		}
	}
}

// A server joined without --wipe, and was removed while it was off. --wipe with the token by which
// it joined is not used up: the cluster decides, and a member keeps its data. Afterwards it is.
func TestWipeWithTheTokenOfAJoinWithoutIt(t *testing.T) {
	h := newHost(t)
	h.keys = func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil }
	o := testOptions(t, "s2")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	data := filepath.Join(enroll.StoreDir(o.DataDir), "log")
	joins := func() {
		t.Helper()
		r, err := enlistServer(t.Context(), o, quiet())
		if err != nil || r.Phase != enroll.PhaseJoining {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it joins with its old store: %v", err)
		}
		r.Phase = enroll.PhaseMember
		if err := errors.Join(r.Save(), os.MkdirAll(filepath.Dir(data), 0o700),
			os.WriteFile(data, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	joins()
	o.Wipe = true
	h.taken = errors.New("a server named s2 is a member of the store")
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil ||
		!strings.Contains(err.Error(), "nothing was wiped") || !strings.Contains(err.Error(), "without --wipe") {
		t.Errorf("a member with --wipe: %v", err)
	}
	if _, err := os.Stat(data); err != nil {
		t.Errorf("data of a member: %v", err)
	}
	h.taken = nil
	joins()
	h.taken = errors.New("a server named s2 is a member of the store")
	if r, err := enlistServer(t.Context(), o, quiet()); err != nil || r.Phase != enroll.PhaseMember {
		t.Errorf("with used arguments: %+v, %v", r, err)
	}
	if _, err := os.Stat(data); err != nil {
		t.Errorf("data after used arguments: %v", err)
	}
}

// A node that was away during an exchange of the cluster's CA does not know the new one. It is
// readmitted, because the cluster knows its CA as a former one; another cluster does not.
func TestANodeThatWasLeftOutOfAnExchangeComesBack(t *testing.T) {
	for _, role := range []string{pki.RoleServer, pki.RoleAgent} {
		t.Run(role, func(t *testing.T) {
			h := newHost(t)
			h.keys = func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil }
			old, err := pki.NewAuthority("c1", time.Now())
			if err != nil {
				t.Fatal(err)
			}
			o := testOptions(t, "n2")
			o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
			r := &enroll.Record{Dir: o.DataDir, Phase: enroll.PhaseMember, Name: "n2", Role: role,
				Cluster: join.Cluster{ID: "c1", CA: pki.NewBundle(old)}}
			if err := errors.Join(r.Save(), os.MkdirAll(enroll.StoreDir(o.DataDir), 0o700)); err != nil {
				t.Fatal(err)
			}
			enlist, flag := enlistServer, "--wipe"
			if role == pki.RoleAgent {
				enlist, flag = enlistAgent, "--rejoin"
			}
			if _, err := enlist(t.Context(), o, quiet()); err == nil || !strings.Contains(err.Error(), "add "+flag) {
				t.Errorf("without %s: %v", flag, err)
			}
			o.Wipe, o.Rejoin = true, true
			if _, err := enlist(t.Context(), o, quiet()); err == nil ||
				!strings.Contains(err.Error(), "belongs to another cluster") {
				t.Errorf("another cluster lets it in: %v", err)
			}
			if is, err := enroll.Load(o.DataDir); err != nil || !is.CA().Knows(old.Digest()) ||
				is.CA().Knows(h.ca.Digest()) {
				t.Errorf("after a refusal it believes %+v, %v", is, err)
			}
			if _, err := os.Stat(enroll.StoreDir(o.DataDir)); err != nil {
				t.Errorf("after a refusal: %v", err)
			}
			h.was = []string{old.Digest()}
			back, err := enlist(t.Context(), o, quiet())
			if err != nil || !back.CA().Knows(h.ca.Digest()) {
				t.Fatalf("%+v, %v", back, err)
			}
			if is, err := enroll.Load(o.DataDir); err != nil || !is.CA().Knows(h.ca.Digest()) {
				t.Errorf("the next start believes %+v, %v", is, err)
			}
		})
	}
}

func TestReplaceTakesThePlaceOfADeadServer(t *testing.T) {
	h := newHost(t)
	h.keys = func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil }
	h.taken = errors.New("a server named s2 is a member of the store")
	o := testOptions(t, "s2")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil || !strings.Contains(err.Error(), "is a member") {
		t.Fatalf("a second s2 joined: %v", err)
	}
	o.Replace = true
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil || r.Phase != enroll.PhaseJoining {
		t.Fatalf("%+v, %v", r, err)
	}
	// A unit that keeps the flag starts the member, and hears that it does nothing.
	r.Phase = enroll.PhaseMember
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	for _, given := range []bool{true, false} {
		var log strings.Builder
		o.Replace = given
		if _, err := enlistServer(t.Context(), o, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(log.String(), "--replace was used up"); told != given {
			t.Errorf("--replace %v: logged %q", given, log.String())
		}
	}
}
