package join

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestUnknownClientsAreLimited(t *testing.T) {
	now := time.Now()
	l := newLimiter(func() time.Time { return now })
	addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	ask := func(a netip.Addr, times int) (answered int) {
		for range times {
			if leave, _, _ := l.enter(a); leave != nil {
				answered++
				leave()
			}
		}
		return answered
	}
	if got := ask(addr(1), 100); got != addressBurst {
		t.Errorf("one address gets %d requests at once, want %d", got, addressBurst)
	}
	if _, after, first := l.enter(addr(1)); after != time.Second || first {
		t.Errorf("it is told to wait for %v, for the first time: %v", after, first)
	}
	if got := ask(addr(2), 1); got != 1 {
		t.Error("another address is limited, too")
	}
	now = now.Add(3 * time.Second)
	if got := ask(addr(1), 100); got != 3*addressRate {
		t.Errorf("after 3 s it gets %d more, want %d", got, 3*addressRate)
	}
	now = now.Add(time.Minute)
	answered := 0
	for n := range 1000 {
		answered += ask(addr(1000+n), 1)
	}
	if answered != wholeBurst {
		t.Errorf("1000 addresses get %d at once, want %d", answered, wholeBurst)
	}
	now = now.Add(time.Minute)
	six := netip.MustParseAddr("2001:db8::1")
	if got := ask(six, addressBurst) + ask(netip.MustParseAddr("2001:db8::2"), 10); got != addressBurst {
		t.Errorf("one network of version 6 gets %d", got)
	}
}

func TestOpenRequestsOfUnknownClientsAreLimited(t *testing.T) {
	l := newLimiter(time.Now)
	var leave []func()
	enter := func(a string) bool {
		f, _, _ := l.enter(netip.MustParseAddr(a))
		if f != nil {
			leave = append(leave, f)
		}
		return f != nil
	}
	for range addressOpen {
		enter("10.0.0.1")
	}
	if enter("10.0.0.1") {
		t.Error("an address has more requests open than it may")
	}
	for n := 2; len(leave) < wholeOpen; n++ {
		if !enter(fmt.Sprintf("10.0.%d.1", n)) {
			t.Fatalf("only %d requests may be open", len(leave))
		}
	}
	if enter("10.0.0.2") {
		t.Error("all have more requests open than they may")
	}
	leave[0]()
	if !enter("10.0.0.2") {
		t.Error("what was answered counts on")
	}
}

// Unknown clients from everywhere take a bounded memory, and later ones are let in.
func TestTheMemoryOfUnknownClientsIsBounded(t *testing.T) {
	now := time.Now()
	l := newLimiter(func() time.Time { return now })
	come := func(second byte) {
		for n := range 2 * knownAddresses {
			if n%100 == 0 {
				now = now.Add(time.Second)
			}
			if leave, _, _ := l.enter(netip.AddrFrom4([4]byte{10, second, byte(n >> 8), byte(n)})); leave != nil {
				leave()
			}
		}
	}
	come(1)
	come(2)
	if len(l.addresses) > knownAddresses {
		t.Errorf("%d addresses are known", len(l.addresses))
	}
	now = now.Add(time.Hour)
	if leave, after, _ := l.enter(netip.MustParseAddr("10.9.0.1")); leave == nil {
		t.Errorf("a new one is refused for %v", after)
	}
}

// A client that goes on asking while it has too many requests open fills no log.
func TestARefusalIsSaidOnceInAWhile(t *testing.T) {
	now := time.Now()
	l := newLimiter(func() time.Time { return now })
	addr := netip.MustParseAddr("10.0.0.1")
	for range addressOpen {
		l.enter(addr)
	}
	for i, want := range []bool{true, false, false, true, false} {
		if i == 3 {
			now = now.Add(sayAgain)
		}
		if leave, _, first := l.enter(addr); leave != nil || first != want {
			t.Errorf("refusal %d: said %v, want %v", i, first, want)
		}
	}
}

// A refused token costs an address more than another request: guesses are few. Its refusals are
// logged once a minute, with their number.
func TestRefusedTokensAreLimitedMore(t *testing.T) {
	now := time.Now()
	l := newLimiter(func() time.Time { return now })
	addr, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	guesses, said := 0, 0
	for range 1000 {
		leave, _, _ := l.enter(addr)
		if leave == nil {
			break
		}
		guesses++
		if say, _ := l.refused(addr, true); say {
			said++
		}
		leave()
	}
	if want := addressBurst / (1 + refusedCost); guesses != want || said != 1 {
		t.Errorf("%d guesses, %d logged; want %d, 1", guesses, said, want)
	}
	if leave, _, _ := l.enter(other); leave == nil {
		t.Error("another address is limited, too")
	}
	now = now.Add(sayAgain)
	if say, unsaid := l.refused(addr, false); !say || unsaid != guesses-1 {
		t.Errorf("after a minute: %t, %d", say, unsaid)
	}
}
