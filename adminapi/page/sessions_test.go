package page

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/pagelogin"
)

// fakeRecords is a store in memory. While away is set, only this server's own copy can be read.
type fakeRecords struct {
	mu       sync.Mutex
	values   map[string][]byte
	revision map[string]uint64
	last     uint64
	away     bool
	lags     bool // this server's own copy has nothing yet
}

var errAway = errors.New("there is no leader")

func newRecords() *fakeRecords {
	return &fakeRecords{values: map[string][]byte{}, revision: map[string]uint64{}}
}

func (f *fakeRecords) Get(_ context.Context, name string) ([]byte, uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return nil, 0, errAway
	}
	return f.values[name], f.revision[name], nil
}

func (f *fakeRecords) List(ctx context.Context, under string) (map[string][]byte, error) {
	if f.away {
		return nil, errAway
	}
	return f.read(under), nil
}

func (f *fakeRecords) Known(_ context.Context, under string) (map[string][]byte, error) {
	if f.lags {
		return nil, nil
	}
	return f.read(under), nil
}

func (f *fakeRecords) read(under string) map[string][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string][]byte{}
	for name, value := range f.values {
		if rest, ok := strings.CutPrefix(name, under); ok {
			out[rest] = value
		}
	}
	return out
}

func (f *fakeRecords) Put(_ context.Context, name string, value []byte, revision, _ uint64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return false, errAway
	}
	if f.revision[name] != revision {
		return false, nil
	}
	f.last++
	f.values[name], f.revision[name] = value, f.last
	return true, nil
}

func (f *fakeRecords) Delete(_ context.Context, name string, revision, _ uint64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return false, errAway
	}
	if f.revision[name] != revision || revision == 0 {
		return false, nil
	}
	delete(f.values, name)
	delete(f.revision, name)
	return true, nil
}

var keyOfAll = sync.OnceValue(func() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
})

func certificateOf(t *testing.T, name string, lasts time.Duration) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(lasts)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, keyOfAll().Public(), keyOfAll())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// TestALinkOpensOneSession: of many who redeem a link at once, one gets a session. The session
// stands for the certificate of the link, and the store has neither token.
func TestALinkOpensOneSession(t *testing.T) {
	records := newRecords()
	s, other := NewSessions(records, time.Now), NewSessions(records, time.Now)
	ann := certificateOf(t, "ann", 24*time.Hour)
	link, err := s.NewLink(t.Context(), ann)
	if err != nil {
		t.Fatal(err)
	}
	leaf, key, id, err := other.Find(t.Context(), link.Token)
	if err != nil || !leaf.Equal(ann) || key != pagelogin.LinkExtra || id != link.ID {
		t.Fatalf("the link is %v, %s, %s, %v", leaf, key, id, err)
	}
	var mu sync.Mutex
	var opened []Made
	var redeeming sync.WaitGroup
	for range 8 {
		redeeming.Go(func() {
			made, _, err := other.Redeem(t.Context(), id)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				opened = append(opened, made)
			} else if !errors.Is(err, pagelogin.ErrUnknown) {
				t.Error(err)
			}
		})
	}
	redeeming.Wait()
	if len(opened) != 1 {
		t.Fatalf("%d sessions were opened", len(opened))
	}
	leaf, key, _, err = s.Find(t.Context(), opened[0].Token)
	if err != nil || !leaf.Equal(ann) || key != pagelogin.SessionExtra {
		t.Errorf("the session is %v, %s, %v", leaf, key, err)
	}
	if _, _, _, err := s.Find(t.Context(), link.Token); !errors.Is(err, pagelogin.ErrUnknown) {
		t.Errorf("the link is still good: %v", err)
	}
	for name, value := range records.read("") {
		for _, token := range []string{link.Token, opened[0].Token} {
			if _, secret, _ := strings.Cut(token, "."); strings.Contains(name+string(value), secret) {
				t.Errorf("the record %s has a secret", name)
			}
		}
	}
}

// TestSessionsEnd: links and sessions end by their time, a session no later than its certificate,
// and a session that was ended is unknown at once.
func TestSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSessions(newRecords(), time.Now)
		open := func(lasts time.Duration) Made {
			made, err := s.Open(t.Context(), certificateOf(t, "ann", lasts))
			if err != nil {
				t.Fatal(err)
			}
			return made
		}
		good := func(made Made) bool {
			_, _, _, err := s.Find(t.Context(), made.Token)
			if err != nil && !errors.Is(err, pagelogin.ErrUnknown) {
				t.Fatal(err)
			}
			return err == nil
		}
		link, err := s.NewLink(t.Context(), certificateOf(t, "ann", time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		long, short, ended := open(100*time.Hour), open(2*time.Hour), open(100*time.Hour)
		out, err := s.End(t.Context(), func(is Session) bool { return is.ID == ended.ID })
		if err != nil || len(out) != 1 || good(ended) {
			t.Errorf("ended %v, %v; it is good: %t", out, err, good(ended))
		}
		time.Sleep(LinkTime - time.Second)
		if !good(link) || !good(long) || !good(short) {
			t.Error("one of them has ended early")
		}
		time.Sleep(2 * time.Second)
		if good(link) {
			t.Error("the link is good after its time")
		}
		time.Sleep(2 * time.Hour)
		if !good(long) || good(short) {
			t.Error("the session of the short certificate has not ended, or the other one has")
		}
		time.Sleep(SessionTime)
		if good(long) {
			t.Error("the session is good after its time")
		}
	})
}

// TestSessionsAreBounded: a user's oldest session ends when there are too many, and records that
// have ended go.
func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := newRecords()
		s := NewSessions(records, time.Now)
		bob, err := s.Open(t.Context(), certificateOf(t, "bob", time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		ann, made := certificateOf(t, "ann", 100*time.Hour), []Made{}
		for range userSessions + 3 {
			m, err := s.Open(t.Context(), ann)
			if err != nil {
				t.Fatal(err)
			}
			made = append(made, m)
			time.Sleep(time.Second)
		}
		all, err := s.List(t.Context())
		if err != nil || len(all) != userSessions+1 {
			t.Errorf("there are %d sessions, %v", len(all), err)
		}
		for i, m := range made {
			if _, _, _, err := s.Find(t.Context(), m.Token); (err == nil) != (i >= 3) {
				t.Errorf("session %d: %v", i, err)
			}
		}
		time.Sleep(2 * time.Hour)
		if _, err := s.Open(t.Context(), ann); err != nil {
			t.Fatal(err)
		}
		if _, is := records.values[sessionsAt+bob.ID]; is {
			t.Error("bob's session has ended, and its record is there")
		}
	})
}

// TestTheClusterIsNotFilled: beyond a number of sessions of all users there are no more.
func TestTheClusterIsNotFilled(t *testing.T) {
	records := newRecords()
	s := NewSessions(records, time.Now)
	for i := range allSessions {
		records.values[fmt.Sprint(sessionsAt, i)] = fmt.Appendf(nil, `{"user":"u%d","expires":%q}`, i,
			time.Now().Add(time.Hour).Format(time.RFC3339))
	}
	if _, err := s.Open(t.Context(), certificateOf(t, "ann", time.Hour)); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
}

// TestStrangersTextsCostNoLookUp: a token of another form is unknown without the store.
func TestStrangersTextsCostNoLookUp(t *testing.T) {
	records := newRecords()
	records.away = true
	s := NewSessions(records, time.Now)
	for _, text := range []string{"", "other", strings.Repeat("o", 33), strings.Repeat("!", 32),
		strings.Repeat("o", 1<<20)} {
		for _, prefix := range []string{pagelogin.SessionPrefix, pagelogin.LinkPrefix} {
			if _, _, _, err := s.Find(t.Context(), prefix+text); !errors.Is(err, pagelogin.ErrUnknown) {
				t.Errorf("%.40q: %v", prefix+text, err)
			}
		}
	}
}

// TestSessionsLastWithoutALeader: a session that this server has is found without others. That an
// unknown one is unknown cannot be said then.
func TestSessionsLastWithoutALeader(t *testing.T) {
	records := newRecords()
	s := NewSessions(records, time.Now)
	made, err := s.Open(t.Context(), certificateOf(t, "ann", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	records.lags = true
	if _, _, _, err := s.Find(t.Context(), made.Token); err != nil {
		t.Errorf("a server that lags does not ask: %v", err)
	}
	records.lags, records.away = false, true
	if _, _, _, err := s.Find(t.Context(), made.Token); err != nil {
		t.Error(err)
	}
	unknown := pagelogin.SessionPrefix + strings.Repeat("o", 32)
	if _, _, _, err := s.Find(t.Context(), unknown); !errors.Is(err, pagelogin.ErrLookup) {
		t.Error(err)
	}
}
