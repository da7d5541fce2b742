package revocation

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// records are those of the store, in memory, with its revision.
type records struct {
	mu       sync.Mutex
	revision uint64
	values   map[string][]byte
	at       map[string]uint64
	before   func(changes []Change) // called before the next Commit
	read     func()                 // called after the next read of all records of a kind
	term     uint64                 // of the leader
	led      bool                   // the leader's work is under way: its writes are fenced
	fail     func(changes []Change) error
	after    func() error // the error of a write that was made
	others   uint64       // revisions of others' writes before the next Commit
	unfenced []string     // records that the leader's work wrote without its term
}

// errTerm is the refusal of a write of another term.
var errTerm = errors.New("the write is of another term")

func newRecords() *records {
	return &records{revision: 10, term: 1, values: map[string][]byte{}, at: map[string]uint64{}}
}

func (r *records) Get(_ context.Context, name string) ([]byte, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values[name], r.at[name], nil
}

func (r *records) Known(_ context.Context, under string) (map[string][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if read := r.read; read != nil {
		r.read = nil
		defer read()
	}
	out := map[string][]byte{}
	for name, v := range r.values {
		if rest, ok := strings.CutPrefix(name, under); ok {
			out[rest] = v
		}
	}
	return out, nil
}

// Commit does as the store's state machine: a write with a term counts in that term alone.
func (r *records) Commit(_ context.Context, term uint64, changes ...Change) (uint64, bool, error) {
	led := r.led
	if before := r.before; before != nil {
		r.before, r.led = nil, false // another one's work
		before(changes)
		r.led = led
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		if led && term == 0 {
			r.unfenced = append(r.unfenced, c.Name)
		}
	}
	if term != 0 && term != r.term {
		return 0, false, errTerm
	}
	if r.fail != nil {
		if err := r.fail(changes); err != nil {
			return 0, false, err
		}
	}
	for _, c := range changes {
		if r.at[c.Name] != c.Revision {
			return 0, false, nil
		}
	}
	r.revision, r.others = r.revision+r.others+1, 0
	for _, c := range changes {
		if c.Value == nil {
			delete(r.values, c.Name)
			delete(r.at, c.Name)
		} else {
			r.values[c.Name], r.at[c.Name] = c.Value, r.revision
		}
	}
	if r.after != nil {
		if err := r.after(); err != nil {
			return 0, false, err
		}
	}
	return r.revision, true, nil
}

func (r *records) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.values))
}

func (r *records) Revision() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision
}

// site is a server with its list, and the Nodes of its cluster.
type site struct {
	*records
	*Book
	keeper  Keeper
	trust   *pki.Trust
	nodes   map[string]string // as the leader has seen them
	stored  map[string]string // as the store has them
	revoked []string
	waiting []string
	cas     []string
	later   time.Duration // on this site's clock
}

func newSite(t *testing.T) *site {
	t.Helper()
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &site{records: newRecords(), trust: pki.TrustOf(ca), nodes: map[string]string{}, stored: map[string]string{}}
	s.cas = []string{s.trust.Digest()}
	list, err := Load(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.Book = &Book{Store: s.records, List: list, Self: "s1", CAs: func() []string { return s.cas },
		Ends: func() time.Time { return ca.Certificate().NotAfter },
		Now:  func() time.Time { return time.Now().Add(s.later) }, Logger: slog.New(slog.DiscardHandler)}
	s.trust.Dated(s.records.Revision)
	s.keeper = Keeper{Book: s.Book, Nodes: func() (map[string]string, bool) { return s.nodes, true },
		Node:    func(_ context.Context, name string) (string, error) { return s.stored[name], nil },
		Delete:  func(_ context.Context, name, uid string) error { return s.setNode(name, "") },
		Revoked: func(e Entry) { s.revoked = append(s.revoked, e.Name) },
		Waiting: func(names []string) { s.waiting = names }}
	return s
}

func (s *site) setNode(name, uid string) error {
	if uid == "" {
		delete(s.stored, name)
	} else {
		s.stored[name] = uid
	}
	s.nodes = maps.Clone(s.stored)
	return nil
}

func (s *site) look(t *testing.T) {
	t.Helper()
	s.keeper.tidied = time.Time{}
	if err := s.lead(t, s.records.term); err != nil {
		t.Fatal(err)
	}
	s.compile(t)
}

// lead lets the keeper look once, as the leader of the term. All its writes are fenced by that.
func (s *site) lead(t *testing.T, term uint64) error {
	t.Helper()
	s.records.led = true
	err := s.keeper.look(t.Context(), term)
	s.records.led = false
	if len(s.records.unfenced) > 0 {
		t.Errorf("the leader wrote %q without its term", s.records.unfenced)
		s.records.unfenced = nil
	}
	return err
}

func (s *site) compile(t *testing.T, removed ...Removed) {
	t.Helper()
	if err := s.Compile(t.Context(), removed, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
}

// issue makes a certificate now.
func (s *site) issue(t *testing.T, r pki.Request) *x509.Certificate {
	t.Helper()
	i, err := identity.New(t.Context(),
		identity.Config{Name: "x", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
			Issue: s.trust.Signs(func() pki.Request { return r }, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	return i.Certificate().Leaf
}

func agent(name string) pki.Request {
	return pki.Request{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}, Usage: pki.Client}
}

func (s *site) want(t *testing.T, what string, cert *x509.Certificate, good bool) {
	t.Helper()
	err := s.List.Check(cert)
	var revoked *Error
	if good != (err == nil) || err != nil && !errors.As(err, &revoked) {
		t.Errorf("%s: %v", what, err)
	}
}

// TestARemovedAgent: its certificates are void from the deletion of its Node on, those of its next
// admission count at once, and those of others always do.
func TestARemovedAgent(t *testing.T) {
	s := newSite(t)
	old := s.issue(t, agent("a1"))
	_ = s.setNode("a1", "uid-1")
	_ = s.setNode("a2", "uid-2")
	other := s.issue(t, agent("a2"))
	s.look(t)
	s.want(t, "a member", old, true)
	renewed := s.issue(t, agent("a1"))
	_ = s.setNode("a1", "")
	s.look(t)
	s.want(t, "removed", old, false)
	s.want(t, "renewed before the removal", renewed, false)
	s.want(t, "of another agent", other, true)
	s.want(t, "a user of the same name", s.issue(t, pki.Request{CommonName: "a1", Usage: pki.Client}), true)
	if !slices.Equal(s.revoked, []string{"a1"}) {
		t.Errorf("reported are %q", s.revoked)
	}
	// It makes its Node again, which does not count.
	_ = s.setNode("a1", "uid-3")
	s.look(t)
	s.later += strayFor
	s.look(t)
	if s.stored["a1"] != "" {
		t.Error("the Node of a removed agent stays")
	}
	s.want(t, "with a new Node", old, false)
	// The machine joins with a new token.
	key := bytes.Repeat([]byte{7}, ed25519.PublicKeySize)
	if _, err := s.Admit(t.Context(), "a1", "digest", key); err != nil {
		t.Fatal(err)
	}
	again := s.issue(t, agent("a1"))
	s.want(t, "before a server has heard of the admission", again, true)
	s.compile(t)
	s.want(t, "joined again", again, true)
	s.want(t, "from before", old, false)
	for public, good := range map[string]bool{string(key): true, strings.Repeat("x", ed25519.PublicKeySize): false} {
		err := s.List.CheckCredential(
			pki.Credential{Name: "a1", Role: pki.RoleAgent, Public: ed25519.PublicKey(public)})
		if good != (err == nil) {
			t.Errorf("gossip, by the key of the admission %t: %v", good, err)
		}
	}
	_ = s.setNode("a1", "uid-4")
	s.look(t)
	s.want(t, "with its Node", again, true)
	if s.stored["a1"] == "" {
		t.Error("the Node of a member was deleted")
	}
	_ = s.setNode("a1", "")
	s.look(t)
	s.want(t, "removed again", again, false)
}

// TestANodeMadeAgainAtOnce: the kubelet of a living agent makes its Node again before the leader
// looks. It is removed all the same.
func TestANodeMadeAgainAtOnce(t *testing.T) {
	s := newSite(t)
	old := s.issue(t, agent("a1"))
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	_ = s.setNode("a1", "uid-2")
	s.look(t)
	s.want(t, "its certificate", old, false)
	if s.stored["a1"] != "" {
		t.Error("the new Node stays")
	}
}

// TestTheLeaderSeesOldNodes: the Nodes that a leader has seen are older than the records, as after
// an election or a restored backup. Nothing is revoked by that.
func TestTheLeaderSeesOldNodes(t *testing.T) {
	s := newSite(t)
	cert := s.issue(t, agent("a1"))
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	s.nodes = map[string]string{}
	s.look(t)
	s.want(t, "not seen yet", cert, true)
	s.nodes = map[string]string{"a1": "uid-0"}
	s.look(t)
	s.want(t, "an earlier one is seen", cert, true)
	// The machine joins while the leader revokes: the admission wins.
	_ = s.setNode("a1", "")
	s.records.before = func([]Change) {
		if _, err := s.Admit(t.Context(), "a1", "digest", make([]byte, ed25519.PublicKeySize)); err != nil {
			t.Error(err)
		}
	}
	s.look(t)
	again := s.issue(t, agent("a1"))
	s.look(t)
	s.want(t, "admitted meanwhile", again, true)
	s.want(t, "from before", cert, false)
}

// TestTheLeaderNotesOldNodes: the Nodes that a leader has seen are older than the store. It records
// none of these: the next look would take a healthy agent for a removed one.
func TestTheLeaderNotesOldNodes(t *testing.T) {
	admit := func(t *testing.T, s *site) {
		t.Helper()
		if _, err := s.Admit(t.Context(), "a1", "digest", make([]byte, ed25519.PublicKeySize)); err != nil {
			t.Fatal(err)
		}
	}
	for what, c := range map[string]struct{ change func(t *testing.T, s *site) }{
		"deleted, and joined again at once": {func(t *testing.T, s *site) {
			delete(s.stored, "a1")
			admit(t, s)
		}},
		"restored in place": {func(t *testing.T, s *site) {
			admit(t, s)
			s.stored["a1"] = "uid-0"
		}},
		"deleted while the leader notes it": {func(t *testing.T, s *site) {
			admit(t, s)
			s.records.before = func([]Change) {
				delete(s.stored, "a1")
				admit(t, s)
				s.records.values["agent/a1"] = []byte{}
				s.records.revision++
				s.records.at["agent/a1"] = s.records.revision
			}
		}},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t)
			_ = s.setNode("a1", "uid-1")
			s.look(t)
			c.change(t, s)
			cert := s.issue(t, agent("a1"))
			s.look(t)
			is := s.stored["a1"]
			if is == "" {
				is = "uid-2"
			}
			_ = s.setNode("a1", is)
			for range 2 {
				s.look(t)
				s.want(t, "healthy", cert, true)
			}
			if s.stored["a1"] != is || string(s.records.values["agent/a1"]) != is || len(s.revoked) > 0 {
				t.Errorf("its Node is %q, recorded %q, revoked %q", s.stored["a1"], s.records.values["agent/a1"],
					s.revoked)
			}
		})
	}
}

// TestOneAgentHoldsNothingUp: a name that cannot be handled stops neither the other names nor the
// upkeep of records.
func TestOneAgentHoldsNothingUp(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"a1", "a2", "a3"} {
		_ = s.setNode(name, "uid-"+name)
	}
	s.look(t)
	old := s.issue(t, agent("a2"))
	s.records.values["entry/agent/a1"], s.records.at["entry/agent/a1"] = []byte("{"), 5
	s.records.values["entry/agent/a0"], s.records.at["entry/agent/a0"] = []byte("{"), 5
	for _, name := range []string{"a1", "a2"} {
		_ = s.setNode(name, "")
	}
	_ = s.setNode("a0", "uid-a0")
	_ = s.setNode("a4", "uid-a4")
	s.keeper.tidied = time.Time{}
	if err := s.lead(t, 1); err == nil || !strings.Contains(err.Error(), "agent/a0") ||
		!strings.Contains(err.Error(), "agent/a1") {
		t.Errorf("of the stuck names it says: %v", err)
	}
	s.compile(t)
	s.want(t, "removed", old, false)
	if string(s.records.values["agent/a4"]) != "uid-a4" || s.keeper.tidied.IsZero() {
		t.Errorf("recorded are %q, tidied at %s", s.records.names(), s.keeper.tidied)
	}
}

// TestLostEntriesComeFirst: after a restored backup the leader puts lost entries back before it
// judges Nodes by them.
func TestLostEntriesComeFirst(t *testing.T) {
	s := newSite(t)
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	_ = s.setNode("a1", "")
	s.look(t)
	backup, at := maps.Clone(s.records.values), maps.Clone(s.records.at)
	if _, err := s.Admit(t.Context(), "a1", "digest", make([]byte, ed25519.PublicKeySize)); err != nil {
		t.Fatal(err)
	}
	s.compile(t)
	s.records.values, s.records.at = backup, at
	s.records.revision += 5
	_ = s.setNode("a1", "uid-2")
	s.look(t)
	if s.stored["a1"] != "uid-2" {
		t.Error("the Node of an agent that joined again was deleted")
	}
}

// TestTheWayBack: servers of an earlier version lead for a while, and agents join and go. When all
// servers are of this version again, no healthy agent is revoked by records from before.
func TestTheWayBack(t *testing.T) {
	s := newSite(t)
	var ran, may []string
	settled := true
	s.keeper.Earlier = func(context.Context) ([]string, []string, error) { return ran, may, nil }
	s.keeper.Settled = func() bool { return settled }
	for _, name := range []string{"a1", "a2", "a3", "a5"} {
		if _, err := s.Admit(t.Context(), name, "key of "+name, make([]byte, ed25519.PublicKeySize)); err != nil {
			t.Fatal(err)
		}
		_ = s.setNode(name, "uid-"+name)
	}
	s.look(t)
	certs := map[string]*x509.Certificate{}
	for _, name := range []string{"a1", "a2", "a3", "a4", "a5"} {
		certs[name] = s.issue(t, agent(name))
	}
	healthy := func(when string) {
		t.Helper()
		s.look(t)
		for name, cert := range certs {
			s.want(t, when+": "+name, cert, true)
		}
		if len(s.revoked) > 0 || s.stored["a1"] == "" || s.stored["a4"] == "" {
			t.Errorf("%s: revoked %q, Nodes %q", when, s.revoked, s.stored)
		}
	}
	ran = []string{"s2"}
	_ = s.setNode("a1", "uid-made-again")
	_ = s.setNode("a2", "")
	_ = s.setNode("a4", "uid-a4")
	healthy("with a server of an earlier version")
	if is, err := s.Mixed(t.Context()); !is || err != nil {
		t.Errorf("mixed %t, %v", is, err)
	}
	ran, settled = nil, false
	healthy("while the CA is exchanged")
	if keys, err := s.Keys(t.Context()); len(keys) != 4 || err != nil {
		t.Errorf("keys are dropped while none is learned: %q, %v", keys, err)
	}
	settled, may = true, []string{"s3"}
	healthy("with a server that has recorded nothing")
	may = nil
	healthy("all of this version")
	healthy("and later")
	is, err := s.Mixed(t.Context())
	if keys, errKeys := s.Keys(t.Context()); is || err != nil || len(keys) > 0 || errKeys != nil {
		t.Errorf("mixed %t, %v; keys %q, %v", is, err, keys, errKeys)
	}
	want := []string{"agent/a1", "agent/a3", "agent/a4", "agent/a5"}
	if got := s.records.names(); !slices.Equal(got, want) {
		t.Errorf("recorded are %q, want %q", got, want)
	}
	_ = s.setNode("a1", "")
	s.look(t)
	s.want(t, "removed", certs["a1"], false)
}

// TestALostAdmission: a restored backup has the removal of an agent, and not that it joined again
// later. Its certificate proves that; one from before its removal proves nothing.
func TestALostAdmission(t *testing.T) {
	s := newSite(t)
	old := s.issue(t, agent("a1"))
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	_ = s.setNode("a1", "")
	s.look(t)
	s.records.revision += 5 // it joined again
	again := s.issue(t, agent("a1"))
	_ = s.setNode("a1", "uid-2")
	s.look(t)
	credential := pki.Credential{Name: "a1", Role: pki.RoleAgent, Public: make([]byte, ed25519.PublicKeySize)}
	if err := s.List.CheckCredential(credential); err == nil {
		t.Error("before the proof gossip believes it")
	}
	for cert, proves := range map[*x509.Certificate]bool{old: false, again: true} {
		if got := s.List.Proves("a1", pki.RevisionOf(cert)); got != proves {
			t.Errorf("the certificate of %d proves %t", pki.RevisionOf(cert), got)
		}
		if err := s.Prove(t.Context(), "a1", pki.RevisionOf(cert)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		s.look(t)
		s.later += strayFor
	}
	s.want(t, "joined again", again, true)
	s.want(t, "from before", old, false)
	if err := s.List.CheckCredential(credential); err != nil {
		t.Error(err)
	}
	if s.stored["a1"] != "uid-2" || string(s.records.values["agent/a1"]) != "uid-2" ||
		s.List.Proves("a1", pki.RevisionOf(again)) {
		t.Errorf("its Node is %q, recorded %q", s.stored["a1"], s.records.values["agent/a1"])
	}
	_ = s.setNode("a1", "")
	s.look(t)
	s.want(t, "removed again", again, false)
}

// TestManyDeletions: a tool deletes all Nodes. A few agents are revoked each minute, and an
// operator lets them in again by their recorded keys.
func TestManyDeletions(t *testing.T) {
	s := newSite(t)
	names := []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"}
	certs := map[string]*x509.Certificate{}
	for _, name := range names {
		certs[name] = s.issue(t, agent(name))
		_ = s.setNode(name, "uid-"+name)
		if err := s.CheckKey(t.Context(), name, pki.KeyOf(certs[name]), name != "a2"); err != nil && name != "a2" {
			t.Fatal(err)
		}
	}
	s.look(t)
	for _, name := range names {
		_ = s.setNode(name, "")
	}
	for range 3 {
		s.look(t)
	}
	if len(s.revoked) != revokedPerMinute || len(s.waiting) != len(names)-revokedPerMinute {
		t.Errorf("revoked %q, waiting %q", s.revoked, s.waiting)
	}
	if _, err := s.Readmit(t.Context(), "a9", nil, "admin", ""); !errors.Is(err, ErrNotRevoked) {
		t.Errorf("an agent that was not revoked: %v", err)
	}
	if _, err := s.Readmit(t.Context(), "a2", nil, "admin", ""); !errors.Is(err, ErrKeyUnknown) {
		t.Errorf("an agent without a key: %v", err)
	}
	forged := s.issue(t, agent("a1"))
	for _, name := range []string{"a1", "a8"} { // revoked, and waiting
		if _, err := s.Readmit(t.Context(), name, nil, "admin", "by mistake"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Readmit(t.Context(), "a1", nil, "admin", ""); err != nil {
		t.Errorf("again: %v", err)
	}
	s.later += time.Minute
	s.look(t)
	s.want(t, "let in again", certs["a1"], true)
	s.want(t, "with another key", forged, false)
	s.want(t, "let in before it was revoked", certs["a8"], true)
	s.want(t, "revoked later", certs["a7"], false)
	if err := s.List.CheckCredential(pki.Credential{Name: "a1", Role: pki.RoleAgent}); err != nil {
		t.Error(err)
	}
	_ = s.setNode("a1", "uid-again")
	for range 2 {
		s.look(t)
		s.later += strayFor
	}
	s.want(t, "with its Node", certs["a1"], true)
	if s.stored["a1"] != "uid-again" {
		t.Error("its Node was deleted")
	}
	_ = s.setNode("a1", "")
	s.later += time.Minute
	s.look(t)
	s.want(t, "removed again", certs["a1"], false)
}

// TestARemovedServer: it is known by its ID. A server that joins again by the name has another.
func TestARemovedServer(t *testing.T) {
	s := newSite(t)
	server := func(id string) pki.Request {
		return pki.Request{CommonName: "s3", Organization: []string{"barque:servers"}, Usage: pki.Client | pki.Server,
			Holder: id}
	}
	kubelet := agent("s3")
	kubelet.Holder = "s3.old"
	old, legacy, back, ofKubelet := s.issue(t, server("s3.old")), s.issue(t, server("")), s.issue(t, server("s3.new")),
		s.issue(t, kubelet)
	client := s.issue(t,
		pki.Request{CommonName: "barque:server-client", Organization: []string{"barque:server-clients"},
			Usage: pki.Client, Holder: "s3.old"})
	gone := Removed{ID: "s3.old", Name: "s3", At: time.Now()}
	s.compile(t)
	s.want(t, "a member", old, true)
	s.compile(t, gone)
	s.want(t, "removed", old, false)
	s.want(t, "its client of other APIs", client, false)
	s.want(t, "its kubelet", ofKubelet, false)
	s.want(t, "of an earlier version", legacy, false)
	s.want(t, "of the server that joins by the name", back, true)
	if err := s.List.CheckCredential(pki.Credential{Name: "s3", Role: pki.RoleServer}); err == nil {
		t.Error("gossip believes it")
	}
	if err := s.Compile(t.Context(), []Removed{gone}, func(name string) bool { return name == "s3" }); err != nil {
		t.Fatal(err)
	}
	s.want(t, "removed, and its name is back", old, false)
	s.want(t, "of an earlier version, and the name is back", legacy, true)
	if err := s.List.CheckCredential(pki.Credential{Name: "s3", Role: pki.RoleServer}); err != nil {
		t.Error(err)
	}
}

// TestARemovedServerInANewCluster: a cluster that begins with a backup goes on with the CA. Its own
// store has removed no server.
func TestARemovedServerInANewCluster(t *testing.T) {
	s := newSite(t)
	old := s.issue(t,
		pki.Request{CommonName: "s3", Organization: []string{"barque:servers"}, Usage: pki.Client | pki.Server,
			Holder: "s3.old"})
	s.compile(t, Removed{ID: "s3.old", Name: "s3", At: time.Now()})
	s.keeper.tidied = s.Now() // an exchange of the CA may be over sooner than the next look for lost entries
	if err := s.lead(t, 1); err != nil {
		t.Fatal(err)
	}
	restored := newSite(t)
	restored.records.values, restored.records.at = maps.Clone(s.records.values), maps.Clone(s.records.at)
	restored.records.revision = s.records.revision + 1000
	restored.cas = s.cas
	restored.compile(t)
	restored.want(t, "removed before the backup", old, false)
}

// TestWhoRemovedAServer: the list names the operator at each server, before the leader has recorded
// the entry and after. A removal without an order is the leader's act.
func TestWhoRemovedAServer(t *testing.T) {
	s := newSite(t)
	removed := []Removed{{ID: "s2.x", Name: "s2"}, {ID: "s3.x", Name: "s3"}, {ID: "s4.x", Name: "s4"}}
	for _, id := range []string{"s2.x", "s4.x"} {
		if err := s.Order(t.Context(), id, "ann"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CancelOrder(t.Context(), "s4.x"); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"s2": "ann", "s3": "s1", "s4": "s1"}
	by := func(b *Book) map[string]string {
		out := map[string]string{}
		for _, e := range b.List.Entries().List {
			out[e.Name] = e.By
		}
		return out
	}
	s.compile(t, removed...)
	if got := by(s.Book); !maps.Equal(got, want) {
		t.Errorf("before the record: %v", got)
	}
	if err := s.lead(t, 1); err != nil {
		t.Fatal(err)
	}
	late := newSite(t)
	late.records, late.Book.Store, late.cas = s.records, s.records, s.cas
	late.compile(t, removed...)
	if got := by(late.Book); !maps.Equal(got, want) {
		t.Errorf("at a server that looks after the record: %v", got)
	}
	if slices.ContainsFunc(s.records.names(), func(name string) bool { return strings.HasPrefix(name, ordersAt) }) {
		t.Errorf("orders stay: %q", s.records.names())
	}
}

// TestEntriesOfServersEnd: after an exchange of the CA a removed server is not on the list, and
// each later look leaves that as it is. A server that joins then has the same list.
func TestEntriesOfServersEnd(t *testing.T) {
	s := newSite(t)
	gone := Removed{ID: "s3.old", Name: "s3", At: time.Now()}
	s.compile(t, gone)
	if n := len(s.List.Entries().List); n != 1 {
		t.Fatalf("%d entries", n)
	}
	s.look(t)
	before := s.cas
	s.cas = append([]string{"the next CA"}, before...)
	s.compile(t, gone)
	if n := len(s.List.Entries().List); n != 1 {
		t.Errorf("%d entries while the CA before is believed", n)
	}
	s.cas = s.cas[:1]
	s.compile(t, gone)
	version := s.List.Entries().Version
	s.look(t) // which drops the records that are over
	for range 3 {
		s.compile(t, gone)
		if is := s.List.Entries(); len(is.List) != 0 || is.Version != version {
			t.Errorf("%d entries of version %d after the exchange, want none of %d", len(is.List), is.Version, version)
		}
	}
	joined := newSite(t)
	joined.records, joined.Store, joined.cas = s.records, s.records, s.cas
	joined.compile(t, gone)
	if n := len(joined.List.Entries().List); n != 0 {
		t.Errorf("%d entries at a new server", n)
	}
}

// TestReadmittedMeanwhile: an operator lets an agent in again while the leader is about to delete
// the Node that the agent has made again.
func TestReadmittedMeanwhile(t *testing.T) {
	s := newSite(t)
	if err := s.CheckKey(t.Context(), "a1", "digest", true); err != nil {
		t.Fatal(err)
	}
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	_ = s.setNode("a1", "uid-2")
	s.keeper.Revoked = func(Entry) {
		s.keeper.Node = func(ctx context.Context, name string) (string, error) {
			s.records.led = false // the operator's write is of no term
			defer func() { s.records.led = true }()
			if _, err := s.Readmit(ctx, name, nil, "ann", "by mistake"); err != nil && !errors.Is(err, ErrNotRevoked) {
				t.Error(err)
			}
			return s.stored[name], nil
		}
	}
	s.look(t)
	if s.stored["a1"] != "uid-2" {
		t.Error("the Node of an agent that was let in again is deleted")
	}
}

// TestACertificateOfAUser is revoked by its serial number.
func TestACertificateOfAUser(t *testing.T) {
	s := newSite(t)
	ann := pki.Request{CommonName: "ann", Usage: pki.Client}
	stolen, other := s.issue(t, ann), s.issue(t, ann)
	for range 2 {
		if _, err := s.RevokeCertificate(t.Context(), SerialOf(stolen), "ann", stolen.NotAfter, "admin",
			"lost"); err != nil {
			t.Fatal(err)
		}
	}
	s.compile(t)
	s.want(t, "revoked", stolen, false)
	s.want(t, "another one of the user", other, true)
	if n := len(s.List.Entries().List); n != 1 {
		t.Errorf("%d entries", n)
	}
}

// TestACertificateOfAnAgentCountsAgain after the agent was let in again, if it is the one in use
// and the entry has the agent's name, at servers that have the entry, too. It can be revoked again.
func TestACertificateOfAnAgentCountsAgain(t *testing.T) {
	s := newSite(t)
	inUse, stolen, bare := s.issue(t, agent("a1")), s.issue(t, agent("a1")), s.issue(t, agent("a1"))
	others, users := s.issue(t, agent("a2")), s.issue(t, pki.Request{CommonName: "a1", Usage: pki.Client})
	revoke := func() {
		t.Helper()
		for cert, name := range map[*x509.Certificate]string{inUse: "system:node:a1", stolen: "system:node:a1",
			bare: "", others: "system:node:a2", users: "a1"} {
			if _, err := s.RevokeCertificate(t.Context(), SerialOf(cert), name, cert.NotAfter, "admin",
				""); err != nil {
				t.Fatal(err)
			}
		}
		s.compile(t)
		for what, cert := range map[string]*x509.Certificate{"in use": inUse, "stolen": stolen, "without a name": bare,
			"another agent's": others, "a user's": users} {
			s.want(t, what+", revoked", cert, false)
		}
	}
	for range 2 {
		revoke()
		// An agent may claim the certificates of others.
		claimed := []string{SerialOf(inUse), SerialOf(bare), SerialOf(others), SerialOf(users)}
		if _, err := s.Readmit(t.Context(), "a1", claimed, "ann", "found"); err != nil {
			t.Fatal(err)
		}
		s.compile(t)
		s.look(t) // an entry that a server has, and the store has not, would be put back
		s.want(t, "in use, let in again", inUse, true)
		s.want(t, "stolen before, still", stolen, false)
		s.want(t, "without a name, still", bare, false)
		s.want(t, "another agent's, still", others, false)
		s.want(t, "a user's, still", users, false)
	}
	if _, err := s.Readmit(t.Context(), "a3", nil, "ann", ""); !errors.Is(err, ErrNotRevoked) {
		t.Errorf("an agent that was not revoked: %v", err)
	}
}

// TestTheListHolds without the store, after a restart, and after a restored backup. It is bounded.
func TestTheListHolds(t *testing.T) {
	s := newSite(t)
	old := s.issue(t, agent("a1"))
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	backup, at := maps.Clone(s.records.values), maps.Clone(s.records.at)
	_ = s.setNode("a1", "")
	s.look(t)
	s.compile(t, Removed{ID: "s9.x", Name: "s9", At: time.Now()})
	loaded, err := Load(strings.TrimSuffix(s.List.path, "/revoked.json"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Check(old); err == nil || len(loaded.Entries().List) != 2 {
		t.Errorf("after a restart: %v, %d entries", err, len(loaded.Entries().List))
	}
	version := s.List.Entries().Version
	// The backup has the Node and its record, and no revocation.
	s.records.values, s.records.at = backup, at
	s.records.revision += 5
	_ = s.setNode("a1", "uid-1")
	s.compile(t)
	s.want(t, "after a restored backup", old, false)
	s.look(t)
	s.want(t, "after the leader has looked", old, false)
	if _, revision, _ := s.Store.Get(t.Context(), "entry/agent/a1"); revision == 0 {
		t.Error("the store lacks the entry")
	}
	if now := s.List.Entries().Version; now < version {
		t.Errorf("the version went back from %d to %d", version, now)
	}
	// With the CA go the certificates.
	s.cas = []string{"another"}
	s.look(t)
	if n := len(s.List.Entries().List); n != 0 {
		t.Errorf("%d entries mean certificates of a CA that is gone", n)
	}
	if _, revision, _ := s.Store.Get(t.Context(), "entry/agent/a1"); revision != 0 {
		t.Error("its record stays")
	}
}

// TestADamagedList is set aside, and the node starts without it.
func TestADamagedList(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"{", `{"format":1,"Entries":null}`, ""} {
		if err := os.WriteFile(Path(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Load(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if aside, err := os.ReadFile(Path(dir) + ".damaged"); string(aside) != text || err != nil {
			t.Errorf("%q: set aside is %q, %v", text, aside, err)
		}
		l.Set(7, []Entry{{Kind: Server, ID: "s1.x"}})
		if again, err := Load(dir, slog.New(slog.DiscardHandler)); err != nil || again.Entries().Version != 7 {
			t.Errorf("after it: %v", err)
		}
	}
}

// TestTheDiskHoldsNothingUp: entries hold, and are seen, while they are written down. A failure is
// made good by the next Set.
func TestTheDiskHoldsNothingUp(t *testing.T) {
	l, err := Load(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	writing, full := make(chan struct{}), make(chan error)
	write := l.write
	l.write = func(string, []byte, os.FileMode) error {
		close(writing)
		return <-full
	}
	changed, set := l.Changed(), make(chan struct{})
	list := []Entry{{Kind: Certificate, ID: "ab"}}
	go func() {
		l.Set(3, list)
		close(set)
	}()
	await.Value(t, "the write", writing)
	checked := make(chan error, 1)
	go func() { checked <- l.Check(&x509.Certificate{SerialNumber: big.NewInt(0xab)}) }()
	if err := await.Value(t, "an answer", checked); err == nil {
		t.Error("it does not hold yet")
	}
	await.Value(t, "the change", changed)
	full <- errors.New("the disk is full")
	await.Value(t, "the end of the write", set)
	l.write = write
	changed = l.Changed()
	l.Set(3, list)
	l.Set(4, list)
	select {
	case <-changed:
		t.Error("a change is announced that is none")
	default:
	}
	if data, err := os.ReadFile(l.path); err != nil || !strings.Contains(string(data), `"ab"`) {
		t.Errorf("on disk is %s, %v", data, err)
	}
}

// TestAnOlderListIsNotTaken: another server may lag.
func TestAnOlderListIsNotTaken(t *testing.T) {
	l, err := Load(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ version, want uint64 }{{5, 5}, {4, 5}, {5, 5}, {6, 6}} {
		l.Update(c.version, []Entry{{Kind: Certificate, ID: fmt.Sprint("0", c.version)}})
		if is := l.Entries(); is.Version != c.want || is.List[0].ID != fmt.Sprint("0", c.want) {
			t.Errorf("after version %d it is %+v", c.version, is)
		}
	}
}

// TestVersionsAreNotAhead: a write between the reading of the revision and of the records is of a
// later version, or agents that have this one would never ask for it.
func TestVersionsAreNotAhead(t *testing.T) {
	s := newSite(t)
	if _, err := s.RevokeCertificate(t.Context(), "ab", "ann", time.Time{}, "admin", ""); err != nil {
		t.Fatal(err)
	}
	before := s.records.Revision()
	s.records.read = func() { s.records.revision += 10 }
	s.compile(t)
	if is := s.List.Entries().Version; is != before {
		t.Errorf("version %d, with records of revision %d", is, before)
	}
}

// TestAnAdmissionVoidsWhatWasIssuedMeanwhile: another server has issued a certificate that it dated
// between this server's look at the revision and its write.
func TestAnAdmissionVoidsWhatWasIssuedMeanwhile(t *testing.T) {
	s := newSite(t)
	key := make([]byte, ed25519.PublicKeySize)
	if _, err := s.Admit(t.Context(), "a1", "first", key); err != nil {
		t.Fatal(err)
	}
	var meanwhile *x509.Certificate
	s.records.before = func([]Change) {
		s.records.revision += 3
		meanwhile = s.issue(t, agent("a1"))
	}
	revision, err := s.Admit(t.Context(), "a1", "second", key)
	if err != nil {
		t.Fatal(err)
	}
	s.compile(t)
	s.want(t, "issued meanwhile", meanwhile, false)
	again := s.issue(t, agent("a1"))
	s.want(t, "issued after it", again, true)
	if got := pki.RevisionOf(again); got < revision {
		t.Errorf("dated %d, promised from %d", got, revision)
	}
}

// TestALabelledAgent: a user gives an agent's Node the label of servers. It is an agent all the
// same, and the Node of a former server is none.
func TestALabelledAgent(t *testing.T) {
	s := newSite(t)
	s.keeper.Marked = func(name string) bool { return name == "s9" || name == "a2" }
	if _, err := s.Admit(t.Context(), "a2", "digest", make([]byte, ed25519.PublicKeySize)); err != nil {
		t.Fatal(err)
	}
	cert := s.issue(t, agent("a2"))
	for _, name := range []string{"s9", "a2"} {
		_ = s.setNode(name, "uid-"+name)
	}
	s.look(t)
	if got := s.records.names(); !slices.Equal(got, []string{"agent/a2", "key/a2"}) ||
		string(s.records.values["agent/a2"]) != "uid-a2" {
		t.Errorf("recorded are %q", got)
	}
	s.want(t, "a member", cert, true)
	for _, name := range []string{"s9", "a2"} {
		_ = s.setNode(name, "")
	}
	s.look(t)
	s.want(t, "removed", cert, false)
	if !slices.Equal(s.revoked, []string{"a2"}) {
		t.Errorf("revoked are %q", s.revoked)
	}
}

// TestEntriesLastAsLongAsCertificates: another server may issue for longer than this one. The CA
// ends all certificates, and a file says when its certificate ends.
func TestEntriesLastAsLongAsCertificates(t *testing.T) {
	s := newSite(t)
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	_ = s.setNode("a1", "")
	s.look(t)
	end := s.Ends()
	late := end.Add(time.Hour).UTC()
	for serial, until := range map[string]time.Time{"ab": {}, "cd": late} {
		if _, err := s.RevokeCertificate(t.Context(), serial, "ann", until, "admin", ""); err != nil {
			t.Fatal(err)
		}
	}
	s.compile(t, Removed{ID: "s9.x", Name: "s9", At: time.Now()})
	for _, e := range s.List.Entries().List {
		want := end
		if e.ID == "cd" {
			want = late
		}
		if !e.Until.Equal(want) {
			t.Errorf("%s %s%s lasts until %s, want %s", e.Kind, e.Name, e.ID, e.Until, want)
		}
	}
	if n := len(s.List.Entries().List); n != 4 {
		t.Errorf("%d entries", n)
	}
}

// TestEntriesEnd: an entry goes with the last certificate that it could mean.
func TestEntriesEnd(t *testing.T) {
	s := newSite(t)
	synctest.Test(t, func(t *testing.T) {
		s.Book.Now = time.Now
		if _, err := s.RevokeCertificate(context.Background(), "ab", "ann", time.Now().Add(time.Hour), "admin",
			""); err != nil {
			t.Fatal(err)
		}
		count := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			if err := s.Compile(context.Background(), nil, func(string) bool { return false }); err != nil {
				t.Fatal(err)
			}
			if n := len(s.List.Entries().List); n != want {
				t.Errorf("%d entries, want %d", n, want)
			}
		}
		count(59*time.Minute, 1)
		count(2*time.Minute, 0)
	})
}

// TestKeysOfAgents: a thief of the CA's key signs for an agent's name. It has another key.
func TestKeysOfAgents(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	check := func(what, key string, learn bool, want error) {
		t.Helper()
		if err := s.CheckKey(ctx, "a1", key, learn); !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("of an earlier version, while the CA is exchanged", "first", false, ErrNoKey)
	check("of an earlier version", "first", true, nil)
	check("the same", "first", false, nil)
	check("forged", "thief", true, ErrOtherKey)
	if _, err := s.Admit(ctx, "a1", "second", make([]byte, ed25519.PublicKeySize)); err != nil {
		t.Fatal(err)
	}
	check("joined again", "second", false, nil)
	check("from before", "first", true, ErrOtherKey)
	if keys, err := s.Keys(ctx); err != nil || string(keys["a1"]) != "second" {
		t.Errorf("%q, %v", keys, err)
	}
}
