package apiendpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestHealth(t *testing.T) {
	answers := map[rune]error{
		'y': nil,
		'n': errors.New("503"),
		't': fmt.Errorf("get: %w", context.DeadlineExceeded),
		'd': fmt.Errorf("dial: %w", os.ErrDeadlineExceeded),
	}
	for _, c := range []struct{ answers, ready string }{
		{"y", "+"},               // the first answer counts
		{"n", "-"},               // either way
		{"t", "?"},               // none says nothing, once
		{"ty", "?+"},             //
		{"tn", "?-"},             //
		{"tt", "?-"},             // but not twice
		{"tdyyy", "?---+"},       //
		{"yn", "+-"},             // a refusal counts at once
		{"yt", "++"},             // a server without an answer may be slow once
		{"ytt", "++-"},           // but not twice
		{"ydd", "++-"},           //
		{"ytyt", "++++"},         // in a row
		{"ytn", "++-"},           //
		{"ynyyy", "+---+"},       // it has to be ready for a while to come back
		{"ynyynyyy", "+------+"}, // without a fault
	} {
		var h health
		got := ""
		for _, a := range c.answers {
			switch h = h.after(answers[a]); {
			case !h.known:
				got += "?"
			case h.ready:
				got += "+"
			default:
				got += "-"
			}
		}
		if got != c.ready {
			t.Errorf("answers %s: ready %s, want %s", c.answers, got, c.ready)
		}
	}
}

// machines are servers that the test makes ill.
type machines struct {
	mu   sync.Mutex
	says map[netip.AddrPort]error // absent: ready
	hang map[netip.AddrPort]bool
}

func (m *machines) probe(ctx context.Context, server netip.AddrPort) error {
	m.mu.Lock()
	err, hang := m.says[server], m.hang[server]
	m.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (m *machines) set(server netip.AddrPort, err error, hang bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.says[server], m.hang[server] = err, hang
}

// A silent server leaves the endpoints after a bounded time. A server that comes and goes does not
// come back each time.
func TestProbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("10.0.0.2:6443")
		list := []netip.AddrPort{a, b}
		m := &machines{says: map[netip.AddrPort]error{}, hang: map[netip.AddrPort]bool{}}
		changes := 0
		var mu sync.Mutex
		p := &probers{probe: m.probe, changed: func() { mu.Lock(); changes++; mu.Unlock() },
			logger: slog.New(slog.DiscardHandler), servers: map[netip.AddrPort]*probedServer{}}
		ctx, cancel := context.WithCancel(t.Context())
		if ready, unknown := p.ready(list); len(ready) > 0 || !slices.Equal(unknown, list) {
			t.Errorf("before anybody was asked, %v are ready, and %v unknown", ready, unknown)
		}
		p.follow(ctx, list)
		ready := func() string {
			servers, unknown := p.ready(list)
			return strings.ReplaceAll(fmt.Sprint(servers, unknown), ":6443", "")
		}
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := ready(); got != want {
				t.Errorf("ready: %s, want %s", got, want)
			}
		}
		// becomes waits until the answer is this one and returns how long it took.
		becomes := func(want string) time.Duration {
			t.Helper()
			for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				synctest.Wait()
				if ready() == want {
					return time.Since(began)
				}
				if time.Since(began) > time.Minute {
					t.Fatalf("it is %s after a minute, want %s", ready(), want)
				}
			}
		}
		expect("[10.0.0.1 10.0.0.2] []")

		m.set(b, errors.New("about to stop"), false)
		if took := becomes("[10.0.0.1] []"); took > probeEvery {
			t.Errorf("a server that says no is left after %v", took)
		}
		m.set(b, nil, false)
		if took := becomes("[10.0.0.1 10.0.0.2] []"); took < 2*probeEvery || took > 4*probeEvery {
			t.Errorf("it is called back after %v", took)
		}
		m.set(b, nil, true)
		if took := becomes("[10.0.0.1] []"); took > 2*(probeEvery+probeTimeout) {
			t.Errorf("a server that says nothing is left after %v", took)
		}
		mu.Lock()
		before := changes
		mu.Unlock()
		for range 60 { // ready for half of the time, for two questions at most
			m.set(b, nil, false)
			time.Sleep(probeEvery * 7 / 5)
			m.set(b, errors.New("no"), false)
			time.Sleep(probeEvery * 7 / 5)
		}
		mu.Lock()
		if changes != before {
			t.Errorf("%d changes while a server came and went", changes-before)
		}
		mu.Unlock()
		expect("[10.0.0.1] []")

		p.follow(ctx, list[:1])
		if _, unknown := p.ready(list); !slices.Equal(unknown, list[1:]) {
			t.Errorf("one of two is followed, and %v are unknown", unknown)
		}
		cancel()
		p.running.Wait()
	})
}
