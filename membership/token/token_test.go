package token_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

var (
	digest = strings.Repeat("ab", 32)
	now    = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
)

// records are those of the store, in memory.
type records struct {
	mu       sync.Mutex
	revision uint64
	all      map[string]item
	lose     int // so many writes take effect, and their outcome is lost
}

type item struct {
	value    []byte
	revision uint64
}

var errLost = errors.New("the outcome is not known")

func (r *records) Get(_ context.Context, name string) ([]byte, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[name].value, r.all[name].revision, nil
}

func (r *records) List(_ context.Context, under string) (map[string][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string][]byte{}
	for name, i := range r.all {
		if rest, ok := strings.CutPrefix(name, under); ok {
			out[rest] = i.value
		}
	}
	return out, nil
}

func (r *records) Put(_ context.Context, name string, value []byte, revision, _ uint64) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[name].revision != revision {
		return false, nil
	}
	r.revision++
	r.all[name] = item{value, r.revision}
	if r.lose > 0 {
		r.lose--
		return false, errLost
	}
	return true, nil
}

func (r *records) Delete(_ context.Context, name string, revision, _ uint64) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[name].revision != revision {
		return false, nil
	}
	delete(r.all, name)
	return true, nil
}

// tokens is a Store on records of its own, at a time of its own.
type tokens struct {
	*token.Store
	records *records
	client  *fake.Clientset
	now     time.Time
	cas     []string
}

func newTokens(former ...*corev1.Secret) *tokens {
	s := &tokens{records: &records{all: map[string]item{}}, client: fake.NewClientset(), now: now,
		cas: []string{digest}}
	for _, f := range former {
		if err := s.client.Tracker().Add(f); err != nil {
			panic(err)
		}
	}
	s.Store = &token.Store{Records: s.records, CAs: func() []string { return s.cas },
		Now:    func() time.Time { return s.now },
		Client: func() (kubernetes.Interface, error) { return s.client, nil }}
	return s
}

func (s *tokens) create(t *testing.T, spec token.Spec) pki.Token {
	t.Helper()
	made, err := s.Create(t.Context(), spec, "ann")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := pki.ParseToken(made.Token)
	if err != nil || made.ID != tok.ID {
		t.Fatalf("%+v, %v", made, err)
	}
	return tok
}

// proof is that of a machine with the token.
func proof(t *testing.T, tok pki.Token) token.Proof {
	t.Helper()
	if tok.Former() {
		return token.Proof{ID: tok.ID, Secret: tok.Secret}
	}
	key, err := tok.Key()
	if err != nil {
		t.Fatal(err)
	}
	signed := []byte("a request")
	return token.Proof{ID: tok.ID, Signed: signed, Signature: ed25519.Sign(key, signed)}
}

func TestUse(t *testing.T) {
	for name, c := range map[string]struct {
		spec token.Spec
		role string
		at   time.Time
		uses int
		want error // of the last use
	}{
		"good":     {token.Spec{Role: token.Server, TTL: time.Hour}, token.Server, now, 5, nil},
		"for ever": {token.Spec{Role: token.Agent}, token.Agent, now.AddDate(5, 0, 0), 1, nil},
		"expired": {token.Spec{Role: token.Server, TTL: time.Hour}, token.Server,
			now.Add(time.Hour + 2*time.Second), 1, token.ErrExpired},
		"wrong role":  {token.Spec{Role: token.Agent}, token.Server, now, 1, token.ErrRole},
		"last use":    {token.Spec{Role: token.Agent, Uses: 2}, token.Agent, now, 2, nil},
		"one too far": {token.Spec{Role: token.Agent, Uses: 2}, token.Agent, now, 3, token.ErrUsedUp},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTokens()
			tok := s.create(t, c.spec)
			s.now = c.at
			var err error
			for range c.uses {
				err = s.Use(t.Context(), proof(t, tok), token.Attempt{Role: c.role, Name: "n1"})
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("use %d: %v; want %v", c.uses, err, c.want)
			}
		})
	}
}

// A wrong secret and a wrong ID are refused alike: the answer does not say which IDs there are.
func TestUseRefusesAnotherSecret(t *testing.T) {
	s := newTokens()
	tok := s.create(t, token.Spec{Role: token.Agent})
	wrong, unknown, replayed := tok, tok, proof(t, tok)
	wrong.Secret, unknown.ID = strings.Repeat("0", len(tok.Secret)), "zzzzzz"
	replayed.Signed = []byte("another request")
	said := map[string]bool{}
	for name, p := range map[string]token.Proof{"secret": proof(t, wrong), "ID": proof(t, unknown),
		"odd ID": {ID: "../form"}, "signature of another request": replayed, "nothing": {ID: tok.ID}} {
		err := s.Use(t.Context(), p, token.Attempt{Role: token.Agent, Name: "n1"})
		if !errors.Is(err, token.ErrUnknown) {
			t.Fatalf("%s: got %v; want ErrUnknown", name, err)
		}
		said[err.Error()] = true
	}
	if len(said) != 1 {
		t.Errorf("refusals differ: %q", slices.Collect(maps.Keys(said)))
	}
}

// TestNothingThatIsKeptLetsIn: the store has no secret, and neither have Secrets.
func TestNothingThatIsKeptLetsIn(t *testing.T) {
	s := newTokens()
	tok := s.create(t, token.Spec{Role: token.Server, Uses: 1, TTL: time.Hour})
	for name, i := range s.records.all {
		if strings.Contains(string(i.value), tok.Secret) {
			t.Errorf("%s has the secret: %s", name, i.value)
		}
	}
	if actions := s.client.Actions(); len(actions) != 0 {
		t.Errorf("the API was asked: %v", actions)
	}
}

func TestListAndDelete(t *testing.T) {
	s := newTokens()
	tok := s.create(t, token.Spec{Role: token.Agent, Uses: 3, TTL: time.Hour, Description: "rack 7"})
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := token.Info{ID: tok.ID, Role: token.Agent, Expires: now.Add(time.Hour), UsesLeft: 3, Limited: true,
		Created: now, CreatedBy: "ann", Description: "rack 7", CADigest: digest}
	if len(list) != 1 || list[0] != want {
		t.Fatalf("List = %+v; want %+v", list, want)
	}
	for _, want := range []bool{true, false} {
		if was, err := s.Delete(t.Context(), tok.ID); err != nil || was != want {
			t.Fatalf("Delete: %t, %v", was, err)
		}
		if err := s.Use(t.Context(), proof(t, tok), token.Attempt{Role: token.Agent, Name: "n1"}); !errors.Is(err,
			token.ErrUnknown) {
			t.Fatalf("deleted token: %v; want ErrUnknown", err)
		}
	}
}

// TestARaceForTheLastUse: of many machines, at whichever server, exactly one gets in.
func TestARaceForTheLastUse(t *testing.T) {
	s := newTokens()
	tok := s.create(t, token.Spec{Role: token.Server, Uses: 1, TTL: time.Hour})
	p := proof(t, tok)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var in int
	for i := range 50 {
		wg.Go(func() {
			err := s.Use(t.Context(), p, token.Attempt{Role: token.Server, Name: "s", Secret: string(rune('A' + i))})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				in++
			} else if !errors.Is(err, token.ErrUsedUp) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if in != 1 {
		t.Errorf("%d got in", in)
	}
}

// TestALostOutcome: the leader stops after a use was counted, and before that is known. The same
// machine gets in with it later, and no other one.
func TestALostOutcome(t *testing.T) {
	s := newTokens()
	tok := s.create(t, token.Spec{Role: token.Server, Uses: 1, TTL: time.Hour})
	first, second := token.Attempt{Role: token.Server, Name: "s2", Secret: "x"},
		token.Attempt{Role: token.Server, Name: "s3", Secret: "y"}
	s.records.lose = 1
	if err := s.Use(t.Context(), proof(t, tok), first); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	if err := s.Use(t.Context(), proof(t, tok), second); !errors.Is(err, token.ErrUsedUp) {
		t.Errorf("another machine: %v", err)
	}
	if err := s.Use(t.Context(), proof(t, tok), first); err != nil {
		t.Errorf("the same machine: %v", err)
	}
}

// A machine that has joined and was removed keeps the data that make it the same attempt. It does
// not come back by a token that is used up.
func TestAnAttemptEnds(t *testing.T) {
	s := newTokens()
	tok := s.create(t, token.Spec{Role: token.Agent, Uses: 1})
	a := token.Attempt{Role: token.Agent, Name: "a1", Secret: "x"}
	for _, use := range []struct {
		after time.Duration
		want  error
	}{{0, nil}, {token.AttemptTime, nil}, {token.AttemptTime + 2*time.Second, token.ErrUsedUp}} {
		s.now = now.Add(use.after)
		if err := s.Use(t.Context(), proof(t, tok), a); !errors.Is(err, use.want) {
			t.Errorf("%v after its first use: %v, want %v", use.after, err, use.want)
		}
	}
}

// A machine whose join breaks off after its use was counted tries again with the same token; no
// other machine does.
func TestAnAttemptIsCountedOnce(t *testing.T) {
	s := newTokens()
	tok := s.create(t, token.Spec{Role: token.Server, Uses: 2, TTL: time.Hour})
	use := func(a token.Attempt, want error) {
		t.Helper()
		if err := s.Check(t.Context(), proof(t, tok), a); !errors.Is(err, want) {
			t.Errorf("Check for %+v: %v; want %v", a, err, want)
		}
		if err := s.Use(t.Context(), proof(t, tok), a); !errors.Is(err, want) {
			t.Errorf("Use for %+v: %v; want %v", a, err, want)
		}
	}
	first, second := token.Attempt{Role: token.Server, Name: "s2", Secret: "x"},
		token.Attempt{Role: token.Server, Name: "s3", Secret: "y"}
	for range 3 {
		use(first, nil)
	}
	use(second, nil)
	use(first, nil)
	use(token.Attempt{Role: token.Server, Name: "s2", Secret: "z"}, token.ErrUsedUp)
	use(token.Attempt{Role: token.Server, Name: "s4", Secret: "x"}, token.ErrUsedUp)
	use(token.Attempt{Role: token.Server, Name: "s2"}, token.ErrUsedUp)
	use(token.Attempt{Role: token.Agent, Name: "s2", Secret: "x"}, token.ErrRole)
	s.now = now.Add(2 * time.Hour)
	if err := s.Use(t.Context(), proof(t, tok), first); !errors.Is(err, token.ErrExpired) {
		t.Errorf("after its end: %v", err)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 1 || list[0].UsesLeft != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestATokenEndsWithItsCA: it is void when the cluster does not believe the CA any more for
// which it was made, also in the hands of a thief that writes the digest of the new one before
// its secret.
func TestATokenEndsWithItsCA(t *testing.T) {
	s := newTokens()
	former, next := digest, strings.Repeat("b", 64)
	tok := s.create(t, token.Spec{Role: token.Agent, Uses: 1})
	a := token.Attempt{Role: token.Agent, Name: "n1"}
	for _, pinned := range []string{former, next} {
		tok.CADigest = pinned
		s.cas = []string{next, former}
		if err := s.Check(t.Context(), proof(t, tok), a); err != nil {
			t.Errorf("while both are believed: %v", err)
		}
		s.cas = []string{next}
		if err := s.Use(t.Context(), proof(t, tok), a); !errors.Is(err, token.ErrFormerCA) {
			t.Errorf("afterwards, with the digest %s: %v", pinned, err)
		}
	}
}

// TestSpecsThatNoTokenCanHave are refused with the flag that is wrong.
func TestSpecsThatNoTokenCanHave(t *testing.T) {
	good := token.Spec{Role: token.Agent, TTL: time.Minute, Uses: 1, Description: strings.Repeat("x", 200)}
	for says, change := range map[string]func(*token.Spec){
		"":                                            func(*token.Spec) {},
		`--role "king": want server or agent`:         func(s *token.Spec) { s.Role = "king" },
		"--ttl -1h0m0s is negative":                   func(s *token.Spec) { s.TTL = -time.Hour },
		"--ttl 59s: want 1m0s at least":               func(s *token.Spec) { s.TTL = 59 * time.Second },
		"--uses -1 is negative":                       func(s *token.Spec) { s.Uses = -1 },
		"--uses 1001: want 1000 at most":              func(s *token.Spec) { s.Uses = 1001 },
		"--description: want one line of 200 bytes":   func(s *token.Spec) { s.Description += "x" },
		"--description: want one line of 200 bytes a": func(s *token.Spec) { s.Description = "a\nb" },
	} {
		s := good
		change(&s)
		if err := s.Check(); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v; want %q", s, err, says)
		}
	}
	for text, is := range map[string]bool{"abc123": true, "x/y": false, "": false, "A": false} {
		if token.IsID(text) != is {
			t.Errorf("%q is an ID: %t", text, !is)
		}
	}
}

// TestDefaults: a server's token lets one machine in, within an hour, unless more was asked for.
func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		given     token.Spec
		ttl, uses bool
		want      token.Spec
	}{
		{token.Spec{Role: token.Server}, false, false, token.Spec{Role: token.Server, TTL: time.Hour, Uses: 1}},
		{token.Spec{Role: token.Server}, true, true, token.Spec{Role: token.Server}},
		{token.Spec{Role: token.Server, Uses: 3}, false, true, token.Spec{Role: token.Server, TTL: time.Hour, Uses: 3}},
		{token.Spec{Role: token.Agent}, false, false, token.Spec{Role: token.Agent, TTL: 24 * time.Hour}},
		{token.Spec{Role: token.Agent, TTL: time.Minute}, true, false, token.Spec{Role: token.Agent, TTL: time.Minute}},
	} {
		if got := c.given.WithDefaults(c.ttl, c.uses); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

// secret is a former token, as earlier versions made them.
func secret(id, role string, more map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: metav1.NamespaceSystem},
		Type: corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"),
			"barque-ca": []byte(digest)}}
	if role != "" {
		s.Data["barque-role"] = []byte(role)
	}
	for k, v := range more {
		s.Data[k] = []byte(v)
	}
	return s
}

func former(id string) pki.Token {
	return pki.Token{CADigest: digest, ID: id, Secret: "0123456789abcdef"}
}

// TestFormerTokens: a token in a Secret counts while a server may be of a version that makes such
// ones. Secrets of users let no machine in, and stay.
func TestFormerTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTokens(secret("server", token.Server, map[string]string{"barque-uses-left": "2"}),
			secret("agents", token.Agent, map[string]string{"expiration": "2030-01-02T04:04:05Z"}),
			secret("others", "", nil))
		attempt := func(role, name string) token.Attempt { return token.Attempt{Role: role, Name: name, Secret: name} }
		use := func(id, role, name string, want error) {
			t.Helper()
			if err := s.Use(t.Context(), proof(t, former(id)), attempt(role, name)); !errors.Is(err, want) {
				t.Errorf("%s as %s %s: %v, want %v", id, role, name, err, want)
			}
		}
		wrong := former("server")
		wrong.Secret = "ffffffffffffffff"
		if err := s.Use(t.Context(), proof(t, wrong), attempt(token.Server, "s2")); !errors.Is(err, token.ErrUnknown) {
			t.Errorf("a wrong secret: %v", err)
		}
		for range 2 {
			use("server", token.Server, "s2", nil)
		}
		use("server", token.Server, "s3", nil)
		use("server", token.Server, "s4", token.ErrUsedUp)
		use("agents", token.Server, "s4", token.ErrRole)
		use("agents", token.Agent, "a1", nil)
		use("others", token.Agent, "a1", token.ErrUnknown)
		use("nobody", token.Agent, "a1", token.ErrUnknown)
		fresh := s.create(t, token.Spec{Role: token.Agent})
		if list, err := s.List(t.Context()); err != nil || len(list) != 3 {
			t.Errorf("%+v, %v", list, err)
		}

		var peers atomic.Pointer[[]token.Peer]
		peers.Store(&[]token.Peer{{Name: "s1", Alive: true, Kept: token.Kept}, {Name: "s2", Alive: true}})
		var log syncbuf.Buffer
		var ended []string
		k := &token.Keeper{Store: s.Store, Peers: func() []token.Peer { return *peers.Load() },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Ended:  func(i token.Info) { ended = append(ended, i.ID) }}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Lead(ctx, 7) }()
		wait := func() {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		wait()
		use("agents", token.Agent, "a1", nil)
		for _, p := range [][]token.Peer{
			{{Name: "s1", Alive: true, Kept: token.Kept}, {Name: "s2", Gone: 9 * time.Minute}}, // it restarts
			nil,
		} {
			peers.Store(&p)
			wait()
			use("agents", token.Agent, "a1", nil)
		}
		peers.Store(
			&[]token.Peer{{Name: "s1", Alive: true, Kept: token.Kept},
				{Name: "s2", Kept: token.Kept, Gone: time.Minute}, {Name: "s3", Gone: 11 * time.Minute}})
		wait()
		use("agents", token.Agent, "a1", token.ErrFormer)
		use("nobody", token.Agent, "a1", token.ErrFormer) // says nothing of IDs
		secrets, err := s.client.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(secrets.Items) != 1 || secrets.Items[0].Name != "bootstrap-token-others" {
			t.Errorf("left are %v, %v", secrets, err)
		}
		if slices.Sort(ended); !slices.Equal(ended, []string{"agents", "server"}) ||
			!strings.Contains(log.String(), "tokenID=agents") {
			t.Errorf("ended are %q; log:\n%s", ended, log.String())
		}
		// A user's Secret lets no machine in, whatever it says.
		if _, err := s.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(),
			secret("rogue1", token.Server, nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		use("rogue1", token.Server, "s9", token.ErrFormer)
		if list, err := s.List(t.Context()); err != nil || len(list) != 1 || list[0].ID != fresh.ID {
			t.Errorf("%+v, %v", list, err)
		}
		if err := s.Use(t.Context(), proof(t, fresh), attempt(token.Agent, "a2")); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestTokensAreCleared a day after they have ended.
func TestTokensAreCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTokens()
		used := s.create(t, token.Spec{Role: token.Server, Uses: 1})
		s.create(t, token.Spec{Role: token.Server, TTL: time.Hour})
		stays := s.create(t, token.Spec{Role: token.Agent})
		if err := s.Use(t.Context(), proof(t, used),
			token.Attempt{Role: token.Server, Name: "s2", Secret: "x"}); err != nil {
			t.Fatal(err)
		}
		k := &token.Keeper{Store: s.Store,
			Peers:  func() []token.Peer { return []token.Peer{{Name: "s1", Alive: true, Kept: token.Kept}} },
			Logger: slog.New(slog.DiscardHandler), Ended: func(token.Info) {}}
		begun := time.Now()
		s.Store.Now = func() time.Time { return now.Add(time.Since(begun)) }
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Lead(ctx, 1) }()
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{23*time.Hour + 50*time.Minute, 3}, {24*time.Hour + 10*time.Minute, 2}, {25*time.Hour + 10*time.Minute, 1}} {
			time.Sleep(c.after - time.Since(begun))
			synctest.Wait()
			if list, err := s.List(t.Context()); err != nil || len(list) != c.want ||
				c.want == 1 && list[0].ID != stays.ID {
				t.Errorf("after %v: %+v, %v", c.after, list, err)
			}
		}
		stop()
		<-done
	})
}
