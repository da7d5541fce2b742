package admissions

import (
	"context"
	"crypto/x509"
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

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// records are those of the store, in memory.
type records struct {
	mu       sync.Mutex
	revision uint64
	values   map[string][]byte
	at       map[string]uint64
	fail     error
	failOnce error  // of the next Get
	before   func() // called before the next Put
}

func (r *records) breaks(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func (r *records) Get(_ context.Context, name string) ([]byte, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.failOnce; err != nil {
		r.failOnce = nil
		return nil, 0, err
	}
	return r.values[name], r.at[name], r.fail
}

func (r *records) Known(_ context.Context, under string) (map[string][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string][]byte{}
	for name, v := range r.values {
		if rest, ok := strings.CutPrefix(name, under); ok {
			out[rest] = v
		}
	}
	return out, r.fail
}

func (r *records) Put(_ context.Context, name string, value []byte, revision, _ uint64) (bool, error) {
	if before := r.before; before != nil {
		r.before = nil
		before()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil || r.at[name] != revision {
		return false, r.fail
	}
	r.revision++
	r.values[name], r.at[name] = value, r.revision
	return true, nil
}

func (r *records) Delete(_ context.Context, name string, revision, _ uint64) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil || r.at[name] != revision {
		return false, r.fail
	}
	delete(r.values, name)
	delete(r.at, name)
	return true, nil
}

func (r *records) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.values))
}

func newBook(self string) (*Book, *records) {
	r := &records{values: map[string][]byte{}, at: map[string]uint64{}}
	return &Book{Records: r, Self: self, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		IsServer:   func(name string) bool { return name == "s1" || name == "s2" },
		Unrecorded: func(context.Context) (bool, error) { return false, nil }}, r
}

// peer is a certificate for a server of that name, with a key of its own.
func peer(t *testing.T, ca *pki.Authority, name string) *x509.Certificate {
	t.Helper()
	i, err := identity.New(t.Context(),
		identity.Config{Name: "peer", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
			Issue: pki.TrustOf(ca).Signs(func() pki.Request {
				return pki.Request{CommonName: name, Organization: []string{join.ServersOrganization},
					Usage: pki.Client | pki.Server}
			}, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	return i.Certificate().Leaf
}

// TestAForgedCertificateIsNotCurrent: a thief of the CA's key can sign a certificate for any name.
// It has another key than the server.
func TestAForgedCertificateIsNotCurrent(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	book, store := newBook("s1")
	first := peer(t, ca, "s1")
	for range 2 {
		if err := book.Publish(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}
	if store.revision != 1 {
		t.Errorf("the same key is written %d times", store.revision)
	}
	check := func(what string, cert *x509.Certificate, current bool) {
		t.Helper()
		if err := book.Current(t.Context(), cert); (err == nil) != current ||
			err != nil && !errors.Is(err, join.ErrNotCurrent) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("its own", first, true)
	check("forged", peer(t, ca, "s1"), false)
	check("of a server that has recorded none", peer(t, ca, "s2"), false)
	check("of nobody", peer(t, ca, "s9"), false)
	renewed := peer(t, ca, "s1")
	if err := book.Publish(t.Context(), renewed); err != nil {
		t.Fatal(err)
	}
	check("renewed", renewed, true)
	check("from before", first, false)
	book.IsServer = func(string) bool { return false }
	check("of a server that was removed", renewed, false)
	book.IsServer = func(string) bool { return true }
	book.Unrecorded = func(context.Context) (bool, error) { return true, nil }
	check("of an earlier version", peer(t, ca, "s2"), true)
	check("forged, for one that has recorded its key", peer(t, ca, "s1"), false)
	store.fail = errors.New("no leader")
	if err := book.Current(t.Context(), renewed); !errors.Is(err, store.fail) || errors.Is(err, join.ErrNotCurrent) {
		t.Errorf("without the store: %v", err)
	}
}

// TestAdmissions: the newest admission of each machine is kept, until it is a member no more.
func TestAdmissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book, store := newBook("s1")
		for _, d := range []join.Decision{
			{Act: join.ActJoin, Granted: true, Role: token.Server, Name: "s2", Address: "10.0.0.2", TokenID: "first0"},
			{Act: join.ActJoin, Granted: true, Role: token.Server, Name: "s2", Address: "10.0.0.2", TokenID: "second"},
			{Act: join.ActJoin, Granted: true, Role: token.Agent, Name: "a1", Address: "10.0.0.3", TokenID: "agents"},
			{Act: join.ActJoin, Granted: true, Role: token.Agent, Name: "a2", Address: "10.0.0.4", TokenID: "agents"},
			{Act: join.ActJoin, Name: "refused", TokenID: "agents"},
			{Act: join.ActRenew, Granted: true, Name: "renewed"},
		} {
			book.Note(t.Context(), d)
		}
		all, err := book.Admissions(t.Context())
		want := Admission{Role: token.Server, At: time.Now().UTC().Truncate(time.Second), TokenID: "second",
			Address: "10.0.0.2", By: "s1"}
		if err != nil || len(all) != 3 || all["s2"] != want {
			t.Errorf("%+v, %v; want %+v", all, err, want)
		}
		store.values["server/s9"], store.at["server/s9"] = []byte(`{}`), 7 // of one that was removed
		var known atomic.Bool
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- book.Forget(ctx, 1,
				func() ([]string, bool) { return []string{"s1", "s2", "a1", "s9"}, known.Load() })
		}()
		for _, c := range []struct {
			known bool
			after time.Duration
			want  []string
		}{
			{false, 3 * time.Hour, []string{"joined/a1", "joined/a2", "joined/s2", "server/s9"}},
			{true, 2 * time.Minute, []string{"joined/a1", "joined/s2"}},
		} {
			known.Store(c.known)
			time.Sleep(c.after)
			synctest.Wait()
			if got := store.names(); !slices.Equal(got, c.want) {
				t.Errorf("Nodes known %t: %q, want %q", c.known, got, c.want)
			}
		}
		book.Note(ctx,
			join.Decision{Act: join.ActJoin, Granted: true, Role: token.Agent, Name: "a3",
				TokenID: "agents"}) // it has no Node yet
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if got := store.names(); !slices.Contains(got, "joined/a3") {
			t.Errorf("%q", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestPublishAll: each renewal is recorded, and one that cannot be now is recorded later.
func TestPublishAll(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certs := []*x509.Certificate{peer(t, ca, "s1"), peer(t, ca, "s1")}
	synctest.Test(t, func(t *testing.T) {
		book, store := newBook("s1")
		store.breaks(errors.New("no leader"))
		renewed, now := make(chan struct{}), certs[0]
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- book.PublishAll(ctx, func() *x509.Certificate { return now },
				func() <-chan struct{} { return renewed })
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		store.breaks(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := book.Current(ctx, certs[0]); err != nil {
			t.Error(err)
		}
		now = certs[1]
		before := renewed
		renewed = make(chan struct{})
		close(before)
		synctest.Wait()
		if err := book.Current(ctx, certs[1]); err != nil {
			t.Error(err)
		}
		stop()
		<-done
	})
}
