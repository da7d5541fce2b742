package node

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// newServer is a server with its certificates, which does not run.
func newServer(t *testing.T) (*serverIdentities, *Options, *record) {
	t.Helper()
	o := options(t, "s1")
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	ids, err := newServerIdentities(t.Context(), o, o.Settings, r, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return ids, o, r
}

// nextCA holds the key of a new CA, and returns it with the bundle that makes it known.
func nextCA(t *testing.T, h *caHome) (*pki.Authority, pki.Bundle) {
	t.Helper()
	next, err := pki.NextAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := next.Key()
	if err != nil {
		t.Fatal(err)
	}
	account, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.trust.Bundle().Begin(next, account.Public(), time.Now())
	if err := errors.Join(err, h.Hold(pki.CAKey, key), h.Hold(pki.AccountKey, account)); err != nil {
		t.Fatal(err)
	}
	return next, b
}

// Whatever the moment of a crash, a server finds its CAs with the key of the one that issues, and
// no key is open to others.
func TestCAsOnDiskSurviveACrashAtEachStep(t *testing.T) {
	ids, o, r := newServer(t)
	again := func(step string, keys int) *caHome {
		t.Helper()
		onDisk, err := loadRecord(o.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		h, err := loadCA(o.DataDir, onDisk)
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		sign, _ := h.trust.AccountKeys(time.Now())
		if got := h.trust.Bundle(); len(h.keys[pki.CAKey]) != keys || len(h.keys[pki.AccountKey]) != keys || !h.trust.CanIssue() || sign == nil || got.Generation != r.ca().Generation {
			t.Errorf("%s: %d keys, generation %d", step, len(h.Keys()), got.Generation)
		}
		for _, name := range keyFiles() {
			if info, err := os.Stat(filepath.Join(pkiDir(o.DataDir), name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %s has mode %v, %v", step, name, info.Mode(), err)
			}
		}
		return h
	}
	h := ids.home
	next, b := nextCA(t, h)
	again("the key is held", 2)
	if err := h.Adopt(b); err != nil {
		t.Fatal(err)
	}
	again("spreading", 2)
	if keyPEM, err := h.key(next.Digest()); err != nil || len(keyPEM) == 0 {
		t.Errorf("the key for other servers: %v", err)
	}
	issuing, err := h.trust.Advance(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.believe(issuing); err != nil { // and then the power went
		t.Fatal(err)
	}
	if crashed := again("a crash between the record and the keys", 2); crashed.trust.Digest() != next.Digest() {
		t.Error("the old CA issues")
	}
	if err := h.Adopt(issuing); err != nil {
		t.Fatal(err)
	}
	if err := again("a crash before the keys are dropped", 2).Tidy(); err != nil {
		t.Fatal(err)
	}
	again("a crash after the keys were dropped", 1)
	if err := h.Tidy(); err != nil {
		t.Fatal(err)
	}
	if again("issuing", 1); len(h.Keys()) != 2 {
		t.Errorf("it has %d keys", len(h.Keys()))
	}
	if _, err := h.key("0123"); err == nil {
		t.Error("it has a key that there is not")
	}
}

// A key whose CA is retired, and that cannot be dropped, as on a full disk, holds no exchange up,
// and no start; it is dropped when that works. The key of the next exchange, which no bundle knows
// yet, stays.
func TestARetiredKeyThatCannotBeDropped(t *testing.T) {
	ids, o, _ := newServer(t)
	h := ids.home
	next, b := nextCA(t, h)
	if err := errors.Join(h.Adopt(b), h.Tidy()); err != nil {
		t.Fatal(err)
	}
	issuing, err := h.trust.Advance(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(pkiDir(o.DataDir), caKey)
	keys, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// A directory in its place is what root cannot write over, either.
	if err := errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := h.Adopt(issuing); err != nil {
		t.Fatal(err)
	}
	if err := h.Tidy(); err == nil || h.trust.Digest() != next.Digest() || len(h.keys[pki.CAKey]) != 2 || len(h.keys[pki.AccountKey]) != 1 {
		t.Errorf("on a full disk: %v; %d keys of CAs, %d of accounts", err, len(h.keys[pki.CAKey]), len(h.keys[pki.AccountKey]))
	}
	if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, keys, 0o600)); err != nil {
		t.Fatal(err)
	}
	third, account := key(t), key(t)
	if err := errors.Join(h.Hold(pki.CAKey, third), h.Hold(pki.AccountKey, account)); err != nil {
		t.Fatal(err)
	}
	onDisk, err := loadRecord(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	restarted, err := loadCA(o.DataDir, onDisk)
	if err != nil {
		t.Fatal(err)
	}
	for who, home := range map[string]*caHome{"it": h, "one that was started again": restarted} {
		if err := home.Tidy(); err != nil {
			t.Error(err)
		}
		own, err := next.Key()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []crypto.Signer{own, third} {
			if !slices.ContainsFunc(home.keys[pki.CAKey], func(k crypto.Signer) bool { return k.Public().(*ecdsa.PublicKey).Equal(want.Public()) }) {
				t.Errorf("%s has dropped a key that is of use", who)
			}
		}
		if len(home.keys[pki.CAKey]) != 2 || len(home.keys[pki.AccountKey]) != 2 {
			t.Errorf("%s has %d keys of CAs and %d of accounts, want 2 and 2", who, len(home.keys[pki.CAKey]), len(home.keys[pki.AccountKey]))
		}
	}
}

// The keys of an exchange that was given up are dropped, also by a server that crashed before it
// had done so.
func TestTheKeysOfAnExchangeThatWasGivenUpAreDropped(t *testing.T) {
	ids, o, r := newServer(t)
	next, b := nextCA(t, ids.home)
	undone, err := b.Undo()
	if err := errors.Join(err, ids.home.Adopt(b), r.believe(undone)); err != nil { // and then the power went
		t.Fatal(err)
	}
	onDisk, err := loadRecord(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	restarted, err := loadCA(o.DataDir, onDisk)
	if err != nil {
		t.Fatal(err)
	}
	if err := restarted.Tidy(); err != nil {
		t.Fatal(err)
	}
	if again, err := loadCA(o.DataDir, onDisk); err != nil || len(again.keys[pki.CAKey]) != 1 {
		t.Errorf("%d keys of CAs are left, %v", len(again.keys[pki.CAKey]), err)
	} else if _, err := again.key(next.Digest()); err == nil {
		t.Error("the CA's key that was given up is left")
	} else if len(again.keys[pki.AccountKey]) != 1 {
		t.Errorf("%d keys of service accounts are left", len(again.keys[pki.AccountKey]))
	} else if sign, others := again.trust.AccountKeys(time.Now()); sign == nil || len(others) > 0 {
		t.Errorf("tokens are signed by %v, and verified by %d other keys", sign, len(others))
	}
}

// A key that is retired, and that a newer bundle needs again, stays.
func TestARetiredKeyThatIsNeededAgain(t *testing.T) {
	ids, _, _ := newServer(t)
	h := ids.home
	next, b := nextCA(t, h)
	undone, err := b.Undo()
	if err := errors.Join(err, h.Adopt(b), h.Adopt(undone)); err != nil {
		t.Fatal(err)
	}
	b.Generation = undone.Generation + 1
	if err := errors.Join(h.Adopt(b), h.Tidy()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.key(next.Digest()); err != nil || len(h.keys[pki.AccountKey]) != 2 {
		t.Errorf("a key that is needed was dropped: %v; %d of accounts", err, len(h.keys[pki.AccountKey]))
	}
}

func key(t *testing.T) crypto.Signer {
	t.Helper()
	k, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// After each step of an exchange a server's certificates are of the CA that issues, gossip is told,
// and the administrator's kubeconfig is whole.
func TestAServerRenewsEverythingInAnExchange(t *testing.T) {
	ids, o, _ := newServer(t)
	if err := ids.serving(); err != nil {
		t.Fatal(err)
	}
	check := func(generation uint64, cas int) {
		t.Helper()
		if err := ids.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, i := range ids.all() {
			if !ids.trust.Issued(i.Certificate().Leaf) {
				t.Errorf("generation %d: the certificate %s is of another CA", generation, i.Name())
			}
		}
		proof := ids.proof.proof()
		c, err := ids.trust.VerifyCredential(proof.Credential, time.Now())
		if err != nil || c.Signer != ids.trust.Digest() || proof.Trust != generation {
			t.Errorf("generation %d: gossip is told %d, by %.8s: %v", generation, proof.Trust, c.Signer, err)
		}
		config, err := clientcmd.LoadFromFile(kubeconfigPath(o))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tls.X509KeyPair(config.AuthInfos["barque:admin"].ClientCertificateData, config.AuthInfos["barque:admin"].ClientKeyData); err != nil {
			t.Errorf("generation %d: the kubeconfig: %v", generation, err)
		}
		if in := config.Clusters["barque"].CertificateAuthorityData; bytes.Count(in, []byte("BEGIN CERTIFICATE")) != cas {
			t.Errorf("generation %d: the kubeconfig has\n%s", generation, in)
		}
	}
	check(1, 1)
	renewed := ids.renewed()
	_, b := nextCA(t, ids.home)
	for _, want := range []struct {
		generation uint64
		cas        int
	}{{2, 2}, {3, 2}, {4, 1}} {
		if err := ids.home.Adopt(b); err != nil {
			t.Fatal(err)
		}
		check(want.generation, want.cas)
		if want.generation < 4 {
			var err error
			if b, err = ids.trust.Advance(time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	select {
	case <-renewed:
	default:
		t.Error("the API server is not told of its new certificate")
	}
}

// A kubeconfig that cannot be written, as on a full disk, keeps neither gossip from being told nor
// an exchange from going on; it is written as soon as that works.
func TestAKubeconfigThatCannotBeWrittenHoldsNothingUp(t *testing.T) {
	ids, o, _ := newServer(t)
	if err := ids.serving(); err != nil {
		t.Fatal(err)
	}
	_, b := nextCA(t, ids.home)
	if err := ids.home.Adopt(b); err != nil {
		t.Fatal(err)
	}
	// A directory in its place is what root cannot write over, either.
	if err := errors.Join(os.Remove(kubeconfigPath(o)), os.MkdirAll(filepath.Join(kubeconfigPath(o), "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := ids.renew(t.Context()); err != nil {
		t.Errorf("renewing fails: %v", err)
	}
	if told := ids.proof.proof().Trust; told != 2 {
		t.Errorf("gossip is told generation %d", told)
	}
	if err := os.RemoveAll(kubeconfigPath(o)); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- ids.saveAgain(ctx) }()
		<-time.After(saveEvery + time.Second) // of virtual time
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	config, err := clientcmd.LoadFromFile(kubeconfigPath(o))
	if err != nil {
		t.Fatal(err)
	}
	if in := config.Clusters["barque"].CertificateAuthorityData; bytes.Count(in, []byte("BEGIN CERTIFICATE")) != 2 {
		t.Errorf("the kubeconfig has\n%s", in)
	}
}

// A kubelet's server and its client go through all steps of an exchange, each with the other at the
// step before.
func TestKubeletConnectionsInAnExchange(t *testing.T) {
	ids, _, r := newServer(t)
	agent, err := pki.NewTrust(r.ca())
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	serving, err := pki.NewIdentity(t.Context(), pki.IdentityConfig{Name: "kubelet", Key: key, Now: time.Now, Logger: quiet(),
		Issue: ids.trust.Signs(func() pki.Request { return join.NodeServing("a1", netip.MustParseAddr("10.0.0.7")) }, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	clientConfig, serverConfig := ids.kubeletClientTLS(), kubeletServerTLS(serving, agent)
	connect := func(step string) {
		t.Helper()
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		client := clientConfig().Clone()
		client.ServerName = "a1"
		result := make(chan error, 1)
		go func() { result <- tls.Client(b, client).HandshakeContext(t.Context()) }()
		server := tls.Server(a, serverConfig)
		err := server.HandshakeContext(t.Context())
		if err := errors.Join(err, <-result); err != nil {
			t.Errorf("%s: %v", step, err)
		} else if len(server.ConnectionState().VerifiedChains) == 0 {
			t.Errorf("%s: the client is not known", step)
		}
	}
	connect("before")
	_, b := nextCA(t, ids.home)
	for _, step := range []string{"spreading", "issuing", "settled"} {
		if err := errors.Join(ids.home.Adopt(b), ids.renew(t.Context())); err != nil {
			t.Fatal(err)
		}
		if step != "settled" { // by then the leader has waited until the agent had a new certificate
			connect(step + ", the agent a step behind")
		}
		if err := errors.Join(agent.Set(b), serving.Renew(t.Context())); err != nil {
			t.Fatal(err)
		}
		connect(step)
		if step != "settled" {
			if b, err = ids.trust.Advance(time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A restart with the flags of long ago goes on: a token of a CA that was retired was made for this
// cluster.
func TestAnOldTokenInTheUnitFileKeepsNobodyFromStarting(t *testing.T) {
	ids, o, r := newServer(t)
	token, err := pki.NewToken(ids.trust.Digest())
	if err != nil {
		t.Fatal(err)
	}
	_, b := nextCA(t, ids.home)
	for range 3 {
		if err := ids.home.Adopt(b); err != nil {
			t.Fatal(err)
		}
		b, _ = ids.trust.Advance(time.Now())
	}
	if len(r.ca().CAs) != 1 || r.ca().Knows("0") {
		t.Fatalf("%+v", r.ca())
	}
	o.Join, o.Token = "https://10.0.0.9:6443", token.String()
	if again, err := enlistServer(t.Context(), o, quiet()); err != nil || again.Cluster.ID != r.Cluster.ID {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestTheShelfInTheStore(t *testing.T) {
	store := testStore(t, "/other")
	shelf := caShelf{store}
	type seen struct {
		state    string
		revision uint64
	}
	got := make(chan seen, 10)
	go shelf.Follow(t.Context(), func(state []byte, revision uint64) { got <- seen{string(state), revision} })
	if first := <-got; first != (seen{}) {
		t.Errorf("nothing is there: %+v", first)
	}
	if err := shelf.Put(t.Context(), []byte("a"), 0, 0); err != nil {
		t.Fatal(err)
	}
	a := <-got
	state, revision, err := shelf.Get(t.Context())
	if err != nil || string(state) != "a" || a != (seen{"a", revision}) {
		t.Errorf("%q at %d, %v; followed %+v", state, revision, err, a)
	}
	var conflict *raftstore.ConflictError
	if err := shelf.Put(t.Context(), []byte("b"), revision+7, 0); !errors.As(err, &conflict) {
		t.Errorf("over what it does not know: %v", err)
	}
	if err := shelf.Put(t.Context(), []byte("b"), revision, 99); !errors.Is(err, raftstore.ErrFenced) {
		t.Errorf("in a term that is over: %v", err)
	}
	if err := shelf.Put(t.Context(), []byte("b"), revision, 0); err != nil {
		t.Fatal(err)
	}
	if b := <-got; b.state != "b" {
		t.Errorf("followed %+v", b)
	}
}

func TestANodeThatWasMadeAnewIsAnotherMachine(t *testing.T) {
	ended := time.Now()
	node := func(made time.Time) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a1", CreationTimestamp: metav1.NewTime(made)}}
	}
	if err := sameMachine(node(ended.Add(-time.Hour)), ended); err != nil {
		t.Error(err)
	}
	if err := sameMachine(node(ended.Add(time.Hour)), ended); !errors.Is(err, join.ErrRemoved) {
		t.Errorf("got %v", err)
	}
}

// Whoever was removed and goes on to gossip holds no exchange up; whoever is away does, and one
// that has joined just now.
func TestWhomAnExchangeWaitsFor(t *testing.T) {
	now := time.Now()
	member := func(name, role string, state gossip.State, since time.Duration) gossip.Member {
		return gossip.Member{Name: name, Role: role, State: state, Since: now.Add(-since), Facts: gossip.Facts{Trust: 1}}
	}
	nodes := map[string]time.Time{"a7": now.Add(-time.Minute)} // made anew after another machine of the name went
	for _, name := range []string{"s1", "s3", "s5", "a1", "a2", "a6"} {
		nodes[name] = now.Add(-2 * time.Hour)
	}
	got := exchangeMembers(now, []string{"s1", "s2", "s4"}, nodes, []gossip.Member{
		member("s1", pki.RoleServer, gossip.Alive, time.Hour),
		member("s2", pki.RoleServer, gossip.Dead, time.Hour),
		member("s3", pki.RoleServer, gossip.Alive, time.Hour),   // removed; its Node is there yet
		member("s5", pki.RoleServer, gossip.Dead, time.Hour),    // removed and stopped; its Node is there yet
		member("s6", pki.RoleServer, gossip.Alive, time.Minute), // removed, without a Node
		member("a1", pki.RoleAgent, gossip.Alive, time.Hour),
		member("a2", pki.RoleAgent, gossip.Dead, time.Hour),
		member("a3", pki.RoleAgent, gossip.Alive, time.Hour),   // removed
		member("a4", pki.RoleAgent, gossip.Dead, time.Second),  // removed and stopped
		member("a5", pki.RoleAgent, gossip.Alive, time.Second), // has no Node yet
		member("a7", pki.RoleServer, gossip.Dead, time.Hour),   // was a server of the name, which is an agent's now
	})
	slices.SortFunc(got, func(a, b exchange.Member) int { return strings.Compare(a.Name, b.Name) })
	want := []exchange.Member{
		{Name: "a1", Alive: true, Generation: 1}, {Name: "a2", Generation: 1}, {Name: "a5", Alive: true, Generation: 1}, {Name: "a6"}, {Name: "a7"},
		{Name: "s1", Server: true, Alive: true, Generation: 1}, {Name: "s2", Server: true, Generation: 1}, {Name: "s4", Server: true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
