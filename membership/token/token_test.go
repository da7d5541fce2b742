package token_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

var (
	digest = strings.Repeat("ab", 32)
	now    = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
)

// newClient does for Secrets what the API server does: stringData becomes data.
func newClient() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "secrets", func(action ktesting.Action) (bool, runtime.Object, error) {
		s := action.(ktesting.CreateAction).GetObject().(*corev1.Secret)
		s.Data = map[string][]byte{}
		for k, v := range s.StringData {
			s.Data[k] = []byte(v)
		}
		s.StringData = nil
		return false, nil, nil
	})
	return client
}

func TestUse(t *testing.T) {
	for name, c := range map[string]struct {
		spec token.Spec
		role string
		at   time.Time
		uses int
		want error // of the last use
	}{
		"good":        {token.Spec{Role: token.Server, TTL: time.Hour}, token.Server, now, 5, nil},
		"for ever":    {token.Spec{Role: token.Agent}, token.Agent, now.AddDate(5, 0, 0), 1, nil},
		"expired":     {token.Spec{Role: token.Server, TTL: time.Hour}, token.Server, now.Add(time.Hour + 2*time.Second), 1, token.ErrExpired},
		"wrong role":  {token.Spec{Role: token.Agent}, token.Server, now, 1, token.ErrRole},
		"last use":    {token.Spec{Role: token.Agent, Uses: 2}, token.Agent, now, 2, nil},
		"one too far": {token.Spec{Role: token.Agent, Uses: 2}, token.Agent, now, 3, token.ErrUsedUp},
	} {
		t.Run(name, func(t *testing.T) {
			client := newClient()
			tok, err := token.Create(t.Context(), client, digest, c.spec, now)
			if err != nil {
				t.Fatal(err)
			}
			for range c.uses {
				err = token.Use(t.Context(), client, []string{digest}, tok, token.Attempt{Role: c.role, Name: "n1"}, c.at)
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("use %d: %v; want %v", c.uses, err, c.want)
			}
		})
	}
}

func TestUseRefusesAnotherSecret(t *testing.T) {
	client := newClient()
	tok, err := token.Create(t.Context(), client, digest, token.Spec{Role: token.Agent}, now)
	if err != nil {
		t.Fatal(err)
	}
	tok.Secret = "0000000000000000"
	if err := token.Use(t.Context(), client, []string{digest}, tok, token.Attempt{Role: token.Agent, Name: "n1"}, now); !errors.Is(err, token.ErrUnknown) {
		t.Fatalf("got %v; want ErrUnknown", err)
	}
}

func TestListAndDelete(t *testing.T) {
	client := newClient()
	tok, err := token.Create(t.Context(), client, digest, token.Spec{Role: token.Agent, Uses: 3, TTL: time.Hour, Description: "rack 7"}, now)
	if err != nil {
		t.Fatal(err)
	}
	list, err := token.List(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	want := token.Info{ID: tok.ID, Role: token.Agent, Expires: now.Add(time.Hour), UsesLeft: 3, Limited: true, Description: "rack 7", CADigest: digest}
	if len(list) != 1 || list[0] != want {
		t.Fatalf("List = %+v; want %+v", list, want)
	}
	if err := token.Delete(t.Context(), client, tok.ID); err != nil {
		t.Fatal(err)
	}
	if err := token.Use(t.Context(), client, []string{digest}, tok, token.Attempt{Role: token.Agent, Name: "n1"}, now); !errors.Is(err, token.ErrUnknown) {
		t.Fatalf("deleted token: %v; want ErrUnknown", err)
	}
	if err := token.Delete(t.Context(), client, tok.ID); !errors.Is(err, token.ErrUnknown) {
		t.Fatalf("second delete: %v; want ErrUnknown", err)
	}
}

// A machine that has joined and was removed keeps what it needs to be taken for the same attempt.
// It does not come back by a token that is used up.
func TestAnAttemptEnds(t *testing.T) {
	client := newClient()
	tok, err := token.Create(t.Context(), client, digest, token.Spec{Role: token.Agent, Uses: 1}, now)
	if err != nil {
		t.Fatal(err)
	}
	a := token.Attempt{Role: token.Agent, Name: "a1", Secret: "x"}
	for _, use := range []struct {
		after time.Duration
		want  error
	}{{0, nil}, {token.AttemptTime, nil}, {token.AttemptTime + 2*time.Second, token.ErrUsedUp}} {
		if err := token.Use(t.Context(), client, []string{digest}, tok, a, now.Add(use.after)); !errors.Is(err, use.want) {
			t.Errorf("%v after its first use: %v, want %v", use.after, err, use.want)
		}
	}
}

// A machine whose join breaks off after its use was counted tries again with the same token; nobody
// else does.
func TestAnAttemptIsCountedOnce(t *testing.T) {
	client := newClient()
	tok, err := token.Create(t.Context(), client, digest, token.Spec{Role: token.Server, Uses: 2, TTL: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	use := func(a token.Attempt, want error) {
		t.Helper()
		if err := token.Check(t.Context(), client, []string{digest}, tok, a, now); !errors.Is(err, want) {
			t.Errorf("Check for %+v: %v; want %v", a, err, want)
		}
		if err := token.Use(t.Context(), client, []string{digest}, tok, a, now); !errors.Is(err, want) {
			t.Errorf("Use for %+v: %v; want %v", a, err, want)
		}
	}
	first, second := token.Attempt{Role: token.Server, Name: "s2", Secret: "x"}, token.Attempt{Role: token.Server, Name: "s3", Secret: "y"}
	for range 3 {
		use(first, nil)
	}
	use(second, nil)
	use(first, nil)
	use(token.Attempt{Role: token.Server, Name: "s2", Secret: "z"}, token.ErrUsedUp)
	use(token.Attempt{Role: token.Server, Name: "s4", Secret: "x"}, token.ErrUsedUp)
	use(token.Attempt{Role: token.Server, Name: "s2"}, token.ErrUsedUp)
	use(token.Attempt{Role: token.Agent, Name: "s2", Secret: "x"}, token.ErrRole)
	if err := token.Use(t.Context(), client, []string{digest}, tok, first, now.Add(2*time.Hour)); !errors.Is(err, token.ErrExpired) {
		t.Errorf("after its end: %v", err)
	}
	list, err := token.List(t.Context(), client)
	if err != nil || len(list) != 1 || list[0].UsesLeft != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestATokenEndsWithItsCA: it is void when the cluster does not believe the CA any more for which
// it was made, also in the hands of somebody who writes the digest of the new one before its
// secret.
func TestATokenEndsWithItsCA(t *testing.T) {
	client := newClient()
	former, next := digest, strings.Repeat("b", 64)
	tok, err := token.Create(t.Context(), client, former, token.Spec{Role: token.Agent, Uses: 1}, now)
	if err != nil {
		t.Fatal(err)
	}
	a := token.Attempt{Role: token.Agent, Name: "n1"}
	for _, pinned := range []string{former, next} {
		tok.CADigest = pinned
		if err := token.Check(t.Context(), client, []string{next, former}, tok, a, now); err != nil {
			t.Errorf("while both are believed: %v", err)
		}
		if err := token.Use(t.Context(), client, []string{next}, tok, a, now); !errors.Is(err, token.ErrFormerCA) {
			t.Errorf("afterwards, with the digest %s: %v", pinned, err)
		}
	}
}

// TestSpecsThatNoTokenCanHave are refused with the flag that is wrong.
func TestSpecsThatNoTokenCanHave(t *testing.T) {
	good := token.Spec{Role: token.Agent, TTL: time.Minute, Uses: 1, Description: strings.Repeat("x", 200)}
	for says, change := range map[string]func(*token.Spec){
		"":                                    func(*token.Spec) {},
		`--role "king": want server or agent`: func(s *token.Spec) { s.Role = "king" },
		"--ttl -1h0m0s is negative":           func(s *token.Spec) { s.TTL = -time.Hour },
		"--ttl 59s: want 1m0s at least":       func(s *token.Spec) { s.TTL = 59 * time.Second },
		"--uses -1 is negative":               func(s *token.Spec) { s.Uses = -1 },
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

// TestMadeOf: a token that ends says when, in whole seconds, and one that does not says nothing.
func TestMadeOf(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	made := token.MadeOf(pki.Token{ID: "abc"}, token.Spec{Role: token.Agent, TTL: time.Hour}, at)
	if made.ID != "abc" || made.Role != token.Agent || made.Expires == nil || !made.Expires.Equal(time.Date(2026, 1, 2, 4, 4, 5, 0, time.UTC)) {
		t.Errorf("%+v", made)
	}
	if made := token.MadeOf(pki.Token{}, token.Spec{}, at); made.Expires != nil {
		t.Errorf("%+v", made)
	}
}
