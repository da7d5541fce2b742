package proxy

import (
	"net/netip"
	"testing"

	"github.com/google/nftables/expr"

	"github.com/barque/barque/network/nft"
)

// TestFewBackendsShareAlike: of the rules of a few backends each is taken by as many connections,
// and each connection takes one.
func TestFewBackendsShareAlike(t *testing.T) {
	for n := 1; n <= few; n++ {
		var backends []Backend
		for i := range n {
			backends = append(backends, Backend{Addr: netip.AddrFrom4([4]byte{10, 42, 0, byte(i)}), Port: 80})
		}
		left := 1.0 // of all connections, those that come to the rule
		ways := transaction{&nft.Tx{}}.ways(backends)
		for i, way := range ways {
			share := 1.0
			if chance, ok := way[0].(*expr.Numgen); ok {
				share = 1 / float64(chance.Modulus)
			}
			if got, want := left*share, 1/float64(n); got < want*0.999 || got > want*1.001 {
				t.Errorf("backend %d of %d gets %v of the connections", i, n, got)
			}
			left -= left * share
		}
		if len(ways) != n || left > 0.001 {
			t.Errorf("%d backends: %d rules, and %v of the connections find none", n, len(ways), left)
		}
	}
}
