package gossip

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// However many agents are away, the servers are looked for first, and a round takes no longer for
// that.
func TestMissing(t *testing.T) {
	at := func(i int) netip.AddrPort {
		return netip.MustParseAddrPort(fmt.Sprintf("10.0.%d.%d:7946", i/250, 1+i%250))
	}
	member := func(i int, role string, state State) Member {
		return Member{Name: fmt.Sprint(i), Role: role, State: state, Addr: at(i)}
	}
	members := []Member{member(0, "server", Alive), member(1, "server", Dead), member(2, "server", Left),
		member(3, "server", Alive), member(4, "agent", Alive)}
	for i := 10; i < 1010; i++ {
		members = append(members, member(i, "agent", Dead))
	}
	// its address is another's now
	members = append(members, Member{Name: "old", Role: "agent", State: Dead, Addr: at(4)})
	seeds := []netip.AddrPort{at(0), at(1), at(3), at(5)}
	seen := map[netip.AddrPort]bool{}
	for range 200 {
		got := missing(at(0), members, seeds)
		if want := []netip.AddrPort{at(1), at(2), at(5)}; len(got) != len(want)+maxMissingAgents ||
			!slices.Equal(got[:len(want)], want) {
			t.Fatalf("got %v, want %v and %d agents", got, want, maxMissingAgents)
		}
		for _, a := range got[3:] {
			if a == at(4) {
				t.Error("an address of a living member was contacted")
			}
			seen[a] = true
		}
	}
	if len(seen) < 300 { // of 600 draws among a thousand
		t.Errorf("only %d of the agents were contacted in 200 rounds", len(seen))
	}
	if got := missing(at(0), nil, nil); len(got) != 0 {
		t.Errorf("alone, %v are missing", got)
	}
}
