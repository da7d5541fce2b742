package credentials

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/tlsoptions"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// diskRecord is what a node has written down, in a file.
type diskRecord struct {
	path string
	ca   pki.Bundle
}

func (r *diskRecord) Path() string           { return r.path }
func (r *diskRecord) CA() pki.Bundle         { return r.ca }
func (r *diskRecord) Servers() []join.Server { return nil }

func (r *diskRecord) Believe(b pki.Bundle) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	r.ca = b
	return atomicfile.Write(r.path, data, 0o600)
}

func readRecord(t *testing.T, path string) *diskRecord {
	t.Helper()
	r := &diskRecord{path: path}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &r.ca)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// newServer is a server of a new cluster with its certificates, which does not run.
func newServer(t *testing.T) (*Server, string, *diskRecord) {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := ca.KeyPEM()
	if err := errors.Join(err, atomicfile.Write(filepath.Join(Dir(dir), CAKey), keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	account, err := pki.LoadOrCreateKey(filepath.Join(Dir(dir), ServiceAccountKey))
	if err != nil {
		t.Fatal(err)
	}
	cas, err := pki.NewBundle(ca).WithAccountKey(account.Public())
	r := &diskRecord{path: filepath.Join(dir, "record.json")}
	if err := errors.Join(err, r.Believe(cas)); err != nil {
		t.Fatal(err)
	}
	ids, err := NewServer(t.Context(),
		ServerConfig{Name: "s1", Address: netip.MustParseAddr("127.0.0.1"), APIPort: 6443, DataDir: dir,
			Names: []string{"localhost"}, ProxyName: "front-proxy", Lifetime: pki.LeafLifetime, Record: r,
			Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return ids, dir, r
}

// nextCA holds the key of a new CA, and returns it with the bundle that makes it known.
func nextCA(t *testing.T, h *Home) (*pki.Authority, pki.Bundle) {
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
	b, err := h.Trust.Bundle().Begin(next, account.Public(), time.Now())
	if err := errors.Join(err, h.Hold(pki.CAKey, key), h.Hold(pki.AccountKey, account)); err != nil {
		t.Fatal(err)
	}
	return next, b
}

// Whatever the moment of a crash, a server finds its CAs with the key of the one that issues, and
// no key is open to others.
func TestCAsOnDiskSurviveACrashAtEachStep(t *testing.T) {
	ids, dir, r := newServer(t)
	again := func(step string, keys int) *Home {
		t.Helper()
		onDisk := readRecord(t, filepath.Join(dir, "record.json"))
		h, err := LoadHome(dir, onDisk)
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		sign, _ := h.Trust.AccountKeys(time.Now())
		if got := h.Trust.Bundle(); len(h.keys[pki.CAKey]) != keys || len(h.keys[pki.AccountKey]) != keys ||
			!h.Trust.CanIssue() || sign == nil || got.Generation != r.CA().Generation {
			t.Errorf("%s: %d keys, generation %d", step, len(h.Keys()), got.Generation)
		}
		for use, name := range KeyFiles() {
			if use.Optional() {
				continue // see TestSeparateCAsOnDisk
			}
			if info, err := os.Stat(filepath.Join(Dir(dir), name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %s has mode %v, %v", step, name, info.Mode(), err)
			}
		}
		return h
	}
	h := ids.Home
	next, b := nextCA(t, h)
	again("the key is held", 2)
	if err := h.Adopt(b); err != nil {
		t.Fatal(err)
	}
	again("spreading", 2)
	if keyPEM, err := h.Key(next.Digest()); err != nil || len(keyPEM) == 0 {
		t.Errorf("the key for other servers: %v", err)
	}
	issuing, err := h.Trust.Advance(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Believe(issuing); err != nil { // and then the power went
		t.Fatal(err)
	}
	if crashed := again("a crash between the record and the keys", 2); crashed.Trust.Digest() != next.Digest() {
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
	if _, err := h.Key("0123"); err == nil {
		t.Error("it has a key that there is not")
	}
}

// A key whose CA is retired, and that cannot be dropped, as on a full disk, holds no exchange up,
// and no start; it is dropped when that works. The key of the next exchange, which no bundle knows
// yet, stays.
func TestARetiredKeyThatCannotBeDropped(t *testing.T) {
	ids, dir, _ := newServer(t)
	h := ids.Home
	next, b := nextCA(t, h)
	if err := errors.Join(h.Adopt(b), h.Tidy()); err != nil {
		t.Fatal(err)
	}
	issuing, err := h.Trust.Advance(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(Dir(dir), CAKey)
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
	if err := h.Tidy(); err == nil || h.Trust.Digest() != next.Digest() || len(h.keys[pki.CAKey]) != 2 ||
		len(h.keys[pki.AccountKey]) != 1 {
		t.Errorf("on a full disk: %v; %d keys of CAs, %d of accounts", err, len(h.keys[pki.CAKey]),
			len(h.keys[pki.AccountKey]))
	}
	if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, keys, 0o600)); err != nil {
		t.Fatal(err)
	}
	third, account := key(t), key(t)
	if err := errors.Join(h.Hold(pki.CAKey, third), h.Hold(pki.AccountKey, account)); err != nil {
		t.Fatal(err)
	}
	onDisk := readRecord(t, filepath.Join(dir, "record.json"))
	restarted, err := LoadHome(dir, onDisk)
	if err != nil {
		t.Fatal(err)
	}
	for who, home := range map[string]*Home{"it": h, "one that was started again": restarted} {
		if err := home.Tidy(); err != nil {
			t.Error(err)
		}
		own, err := next.Key()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []crypto.Signer{own, third} {
			if !slices.ContainsFunc(home.keys[pki.CAKey],
				func(k crypto.Signer) bool { return k.Public().(*ecdsa.PublicKey).Equal(want.Public()) }) {
				t.Errorf("%s has dropped a key that is of use", who)
			}
		}
		if len(home.keys[pki.CAKey]) != 2 || len(home.keys[pki.AccountKey]) != 2 {
			t.Errorf("%s has %d keys of CAs and %d of accounts, want 2 and 2", who, len(home.keys[pki.CAKey]),
				len(home.keys[pki.AccountKey]))
		}
	}
}

// The keys of an exchange that was given up are dropped, also by a server that crashed before it
// had done so.
func TestTheKeysOfAnExchangeThatWasGivenUpAreDropped(t *testing.T) {
	ids, dir, r := newServer(t)
	next, b := nextCA(t, ids.Home)
	undone, err := b.Undo()
	if err := errors.Join(err, ids.Home.Adopt(b), r.Believe(undone)); err != nil { // and then the power went
		t.Fatal(err)
	}
	onDisk := readRecord(t, filepath.Join(dir, "record.json"))
	restarted, err := LoadHome(dir, onDisk)
	if err != nil {
		t.Fatal(err)
	}
	if err := restarted.Tidy(); err != nil {
		t.Fatal(err)
	}
	if again, err := LoadHome(dir, onDisk); err != nil || len(again.keys[pki.CAKey]) != 1 {
		t.Errorf("%d keys of CAs are left, %v", len(again.keys[pki.CAKey]), err)
	} else if _, err := again.Key(next.Digest()); err == nil {
		t.Error("the CA's key that was given up is left")
	} else if len(again.keys[pki.AccountKey]) != 1 {
		t.Errorf("%d keys of service accounts are left", len(again.keys[pki.AccountKey]))
	} else if sign, others := again.Trust.AccountKeys(time.Now()); sign == nil || len(others) > 0 {
		t.Errorf("tokens are signed by %v, and verified by %d other keys", sign, len(others))
	}
}

// A key that is retired, and that a newer bundle needs again, stays.
func TestARetiredKeyThatIsNeededAgain(t *testing.T) {
	ids, _, _ := newServer(t)
	h := ids.Home
	next, b := nextCA(t, h)
	undone, err := b.Undo()
	if err := errors.Join(err, h.Adopt(b), h.Adopt(undone)); err != nil {
		t.Fatal(err)
	}
	b.Generation = undone.Generation + 1
	if err := errors.Join(h.Adopt(b), h.Tidy()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Key(next.Digest()); err != nil || len(h.keys[pki.AccountKey]) != 2 {
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
	ids, dir, _ := newServer(t)
	if err := ids.Serving(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := func(generation uint64, cas int) {
		t.Helper()
		if err := ids.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, i := range ids.identities() {
			if !ids.Trust.Issued(i.Certificate().Leaf) {
				t.Errorf("generation %d: the certificate %s is of another CA", generation, i.Name())
			}
		}
		proof := ids.proof.proof()
		c, err := ids.Trust.VerifyCredential(proof.Credential, time.Now())
		if err != nil || c.Signer != ids.Trust.Digest() || proof.Trust != generation {
			t.Errorf("generation %d: gossip is told %d, by %.8s: %v", generation, proof.Trust, c.Signer, err)
		}
		config, err := clientcmd.LoadFromFile(KubeconfigPath(dir))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tls.X509KeyPair(config.AuthInfos["barque:admin"].ClientCertificateData,
			config.AuthInfos["barque:admin"].ClientKeyData); err != nil {
			t.Errorf("generation %d: the kubeconfig: %v", generation, err)
		}
		if in := config.Clusters["barque"].CertificateAuthorityData; bytes.Count(in,
			[]byte("BEGIN CERTIFICATE")) != cas {
			t.Errorf("generation %d: the kubeconfig has\n%s", generation, in)
		}
	}
	check(1, 1)
	renewed := ids.Renewed()
	_, b := nextCA(t, ids.Home)
	for _, want := range []struct {
		generation uint64
		cas        int
	}{{2, 2}, {3, 2}, {4, 1}} {
		if err := ids.Home.Adopt(b); err != nil {
			t.Fatal(err)
		}
		check(want.generation, want.cas)
		if want.generation < 4 {
			var err error
			if b, err = ids.Trust.Advance(time.Now()); err != nil {
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
	ids, dir, _ := newServer(t)
	if err := ids.Serving(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, b := nextCA(t, ids.Home)
	if err := ids.Home.Adopt(b); err != nil {
		t.Fatal(err)
	}
	// A directory in its place is what root cannot write over, either.
	if err := errors.Join(os.Remove(KubeconfigPath(dir)),
		os.MkdirAll(filepath.Join(KubeconfigPath(dir), "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := ids.Renew(t.Context()); err != nil {
		t.Errorf("renewing fails: %v", err)
	}
	if told := ids.proof.proof().Trust; told != 2 {
		t.Errorf("gossip is told generation %d", told)
	}
	if err := os.RemoveAll(KubeconfigPath(dir)); err != nil {
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
	config, err := clientcmd.LoadFromFile(KubeconfigPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if in := config.Clusters["barque"].CertificateAuthorityData; bytes.Count(in, []byte("BEGIN CERTIFICATE")) != 2 {
		t.Errorf("the kubeconfig has\n%s", in)
	}
}

// A node writes the address at which servers call its kubelet. So the certificate that they show
// there gives no rights but those to kubelets; servers call each other with another one.
func TestKubeletsSeeNoAdministrator(t *testing.T) {
	ids, _, _ := newServer(t)
	kubelets := ids.KubeletTLS()("a1")
	for name, c := range map[string]struct {
		config  *tls.Config
		subject string
	}{
		"to any kubelet":     {ids.KubeletClientTLS()(), "CN=barque:kubelet-client,O=barque:kubelet-clients"},
		"to one kubelet":     {kubelets, "CN=barque:kubelet-client,O=barque:kubelet-clients"},
		"to another API":     {ids.CallTLS(), "CN=barque:server-client,O=barque:server-clients"},
		"to an earlier one":  {ids.CallAsAdmin(), "CN=barque:admin,O=system:masters"},
		"to another kubelet": {ids.KubeletTLS()("a2"), "CN=barque:kubelet-client,O=barque:kubelet-clients"},
	} {
		cert, err := c.config.GetClientCertificate(&tls.CertificateRequestInfo{})
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if got := leaf.Subject.String(); got != c.subject {
			t.Errorf("%s: %s, want %s", name, got, c.subject)
		}
	}
}

// A kubelet's server and its client go through all steps of an exchange, each with the other at the
// step before.
func TestKubeletConnectionsInAnExchange(t *testing.T) {
	ids, _, r := newServer(t)
	agent, err := pki.NewTrust(r.CA())
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	serving, err := identity.New(t.Context(),
		identity.Config{Name: "kubelet", Key: key, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
			Issue: ids.Trust.Signs(
				func() pki.Request { return join.NodeServing("a1", netip.MustParseAddr("10.0.0.7")) },
				time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	clientConfig, serverConfig := ids.KubeletTLS(), KubeletServerTLS(serving, agent, tlsoptions.Options{})
	connect := func(step string) {
		t.Helper()
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		client := clientConfig("a1")
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
	_, b := nextCA(t, ids.Home)
	for _, step := range []string{"spreading", "issuing", "settled"} {
		if err := errors.Join(ids.Home.Adopt(b), ids.Renew(t.Context())); err != nil {
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
			if b, err = ids.Trust.Advance(time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestTheKubeconfigIsRecordedFirst: the key in the file is recorded before anybody can read it, at
// a start and at each renewal. While the CA is exchanged an unrecorded one is not written.
func TestTheKubeconfigIsRecordedFirst(t *testing.T) {
	ids, dir, r := newServer(t)
	recorded := map[string]bool{}
	var lost error
	read := func() string {
		t.Helper()
		config, err := clientcmd.LoadFromFile(KubeconfigPath(dir))
		if errors.Is(err, os.ErrNotExist) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(config.AuthInfos["barque:admin"].ClientCertificateData)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return pki.KeyOf(cert)
	}
	check := func(when string) {
		t.Helper()
		if key := read(); key != "" && !recorded[key] {
			t.Errorf("%s: the key in the file is not recorded", when)
		}
	}
	ids.Announce = func(context.Context) error {
		check("while it is announced")
		if lost == nil {
			_, admin := ids.Others()
			recorded[pki.KeyOf(admin)] = true
		}
		return lost
	}
	act := func(when string, f func(context.Context) error, changes bool) {
		t.Helper()
		before := read()
		if err := f(t.Context()); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if changed := read() != before; changed != changes {
			t.Errorf("%s: the file is another one: %v", when, changed)
		}
	}
	act("at the start", ids.Serving, true)
	check("at the start")
	act("at a renewal", ids.Renew, true)
	check("at a renewal")
	lost = errors.New("the quorum is lost")
	act("without a quorum", ids.Renew, true)
	lost, recorded[read()] = nil, true // by the next try
	act("with one again", ids.Renew, true)
	_, b := nextCA(t, ids.Home)
	if err := ids.Home.Adopt(b); err != nil {
		t.Fatal(err)
	}
	if r.ca.Step == pki.Settled {
		t.Fatal("no exchange is under way")
	}
	act("in an exchange", ids.Renew, true)
	check("in an exchange")
	lost = errors.New("the quorum is lost")
	act("in an exchange without a quorum", ids.Renew, false)
	act("at a start in an exchange without a quorum", ids.Serving, false)
	check("without a quorum")
	lost = nil
	act("with one again", ids.save, true)
	check("with one again")
}

// TestAnExchangeOfTheAccountKeyRenewsNothing: a server proves each generation, and renews its
// certificates for another CA alone, or when they are due.
func TestAnExchangeOfTheAccountKeyRenewsNothing(t *testing.T) {
	ids, _, _ := newServer(t)
	if err := errors.Join(ids.Serving(t.Context()), ids.Renew(t.Context())); err != nil {
		t.Fatal(err)
	}
	adopt := func(when string, b pki.Bundle, err error, renews bool) {
		t.Helper()
		if err := errors.Join(err, ids.Home.Adopt(b)); err != nil {
			t.Fatal(err)
		}
		before := map[string]*tls.Certificate{}
		for _, i := range ids.identities() {
			before[i.Name()] = i.Certificate()
		}
		if err := ids.upkeep().Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, i := range ids.identities() {
			if renewed := i.Certificate() != before[i.Name()]; renewed != renews {
				t.Errorf("%s: the certificate %s is a new one: %v", when, i.Name(), renewed)
			}
		}
		if got := ids.proof.proof().Trust; got != b.Generation {
			t.Errorf("%s: the generation %d is proven, want %d", when, got, b.Generation)
		}
	}
	key, err := pki.GenerateKey()
	if err := errors.Join(err, ids.Home.Hold(pki.AccountKey, key)); err != nil {
		t.Fatal(err)
	}
	b, err := ids.Trust.Bundle().BeginAccounts(key.Public(), time.Now())
	adopt("the key is made known", b, err, false)
	for _, when := range []string{"the key signs", "it is over"} {
		b, err = ids.Trust.Advance(time.Now())
		adopt(when, b, err, false)
	}
	_, b = nextCA(t, ids.Home)
	adopt("a CA is made known", b, nil, true)
	for _, when := range []string{"the CA issues", "it is over"} {
		b, err = ids.Trust.Advance(time.Now())
		adopt(when, b, err, true)
	}
}

// TestAMissingKey: a server that lacks a key of all servers says which one that is, and the remedy.
func TestAMissingKey(t *testing.T) {
	for use, name := range KeyFiles() {
		if use.Optional() {
			continue // see TestSeparateCAsOnDisk
		}
		_, dir, r := newServer(t)
		path := filepath.Join(Dir(dir), name)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		_, loads := LoadHome(dir, r)
		_, shares := ClusterKeys(dir)
		for _, err := range []error{loads, shares} {
			if !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v; want it to be missing", name, err)
				continue
			}
			for _, says := range []string{path, "the key of " + string(use), "copy the file from another server"} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%s: the error %q lacks %q", name, err, says)
				}
			}
		}
	}
}
