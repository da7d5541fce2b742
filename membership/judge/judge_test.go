package judge

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
)

// store is the store in memory. Its records never change.
type store struct {
	mu      sync.Mutex
	members map[string]string
	removed []revocation.Removed
	noted   func()
}

func (s *store) Members() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members
}

func (s *store) Removed() []revocation.Removed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removed
}

func (s *store) Follow(ctx context.Context, noted func()) error {
	s.mu.Lock()
	s.noted = noted
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (*store) Await(context.Context, uint64) error { return nil }

func (*store) Get(context.Context, string) ([]byte, uint64, error) { return nil, 0, nil }

func (*store) Known(context.Context, string) (map[string][]byte, error) { return nil, nil }

func (*store) Commit(context.Context, uint64, ...revocation.Change) (uint64, bool, error) {
	return 1, true, nil
}

func (*store) Revision() uint64 { return 1 }

// links counts the looks at the connections.
type links struct {
	mu                  sync.Mutex
	forgotten, rechecks int
}

func (l *links) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgotten++
}

func (l *links) Recheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rechecks++
}

func (l *links) take() (forgotten, rechecks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	forgotten, rechecks = l.forgotten, l.rechecks
	l.forgotten, l.rechecks = 0, 0
	return forgotten, rechecks
}

func newJudge(t *testing.T, s *store, l *links) *Judge {
	t.Helper()
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	trust, err := pki.NewTrust(pki.NewBundle(ca))
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	list, err := revocation.Load(t.TempDir(), logger)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Self: "s1", Trust: trust, List: list, Store: s, Connections: l, Logger: logger,
		Book: &revocation.Book{Store: s, List: list, Self: "s1", CAs: func() []string { return nil },
			Ends: func() time.Time { return LastEnd(trust) }, Now: time.Now, Logger: logger},
		Announce: func(uint64) {}, IsAgent: func(name string) bool { return name == "a1" },
		Own: func() []*x509.Certificate { return []*x509.Certificate{{SerialNumber: big.NewInt(0xab)}} }})
}

// TestFollow: connections are judged anew when the members or the records change, and not without a
// reason. Strangers are looked at each second.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := &store{members: map[string]string{"1": "s1"}}, &links{}
		j := newJudge(t, s, l)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx) }()
		for _, step := range []struct {
			what     string
			change   func()
			rechecks int
		}{
			{"the start", func() {}, 1}, {"nothing", func() {}, 0},
			{"a member", func() { s.members = map[string]string{"1": "s1", "2": "s2"} }, 1},
			{"a removal", func() { s.removed = []revocation.Removed{{ID: "2", Name: "s2"}} }, 1},
			{"a record", func() { s.noted() }, 1},
		} {
			s.mu.Lock()
			step.change()
			s.mu.Unlock()
			<-time.After(lookAtMembers + time.Millisecond)
			synctest.Wait()
			if forgotten, rechecks := l.take(); forgotten == 0 || rechecks != step.rechecks {
				t.Errorf("%s: %d looks at strangers, %d at all", step.what, forgotten, rechecks)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestNeeded: no order shuts out a present member.
func TestNeeded(t *testing.T) {
	j := newJudge(t, &store{members: map[string]string{"1": "s1", "2": "s2"}}, &links{})
	for what, c := range map[string]struct {
		order revocation.Order
		says  string
	}{
		"a certificate of its own":   {revocation.Order{Serial: "ab"}, "server s1"},
		"of a member, by its ID":     {revocation.Order{Holder: "2"}, "server s2"},
		"of a member, by its name":   {revocation.Order{Name: "s2"}, "s2, which is a member"},
		"of an agent":                {revocation.Order{Name: pki.NodeUser + "a1"}, "a1, which is a member"},
		"of an agent that is gone":   {revocation.Order{Name: pki.NodeUser + "a2"}, ""},
		"of a user, as an agent's":   {revocation.Order{Name: "a1"}, ""},
		"of a server that is gone":   {revocation.Order{Holder: "3", Name: "s3"}, ""},
		"of a user, by the serial":   {revocation.Order{Serial: "cd"}, ""},
		"of a node of a server here": {revocation.Order{Name: pki.NodeUser + "s1"}, "s1, which is a member"},
	} {
		err := j.Needed(c.order)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestAgentsAreNoted: the key of an agent waits to be recorded. A user's certificate is no agent's.
func TestAgentsAreNoted(t *testing.T) {
	j := newJudge(t, &store{}, &links{})
	for name, want := range map[string]int{pki.NodeUser + "a1": 1, pki.NodeUser + "a2": 0, "ann": 0} {
		j.noteAgent(&x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"system:nodes"}}})
		if n := len(j.agents); n != want {
			t.Errorf("%s: %d wait", name, n)
		}
		for len(j.agents) > 0 {
			<-j.agents
		}
	}
}
