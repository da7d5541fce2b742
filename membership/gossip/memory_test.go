package gossip

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/heapcost"
	"github.com/barque/barque/pki"
)

// TestTheMemoryOfStrangers: memberlist reads the whole of an encrypted state before it knows the
// sender. Strangers that announce 20 MiB and send a part of it make a member hold little, and
// members meet beside them. So do silent ones.
func TestTheMemoryOfStrangers(t *testing.T) {
	const clients = 200
	const labelled, encrypted = 244, 10 // memberlist's types of messages
	label := "barque:" + clusterID
	state := append([]byte{labelled, byte(len(label))}, label...)
	state = binary.BigEndian.AppendUint32(append(state, encrypted), 20<<20)
	state = append(state, make([]byte, 2<<20)...)
	for name, c := range map[string]struct {
		send []byte
		most int64
	}{
		"silent":       {nil, clients * heapcost.MostEach},
		"long states":  {state, 3*streamLimits.Bytes + clients*heapcost.MostEach},
		"short states": {state[:64], clients * heapcost.MostEach},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newCA(t)
			seed := freeAddr(t, 1)
			begin := func(name string, addr netip.AddrPort) *node {
				proof := proofOf(t, ca, name, "server", time.Now().Add(time.Hour))
				return startNode(t,
					Config{Name: name, Advertise: addr, Authority: pki.TrustOf(ca),
						Proof: func() Proof { return proof }, Tune: patient,
						Seeds: func() []netip.AddrPort { return []netip.AddrPort{seed} }})
			}
			a := begin("a", seed)
			limiter := a.streams.limiter
			cost := heapcost.Of(func() {
				strangers := heapcost.Dial(t, seed.String(), clients, heapcost.Sends(c.send))
				await.True(t, "the member has what the rest has sent", func() bool {
					return limiter.Count()+strangers.Closed() == clients &&
						limiter.Held() == int64(limiter.Count()*len(c.send))
				})
			})
			if limiter.Count() == 0 {
				t.Fatal("the member has closed all")
			}
			if cost > c.most {
				t.Errorf("%d clients take %d bytes", limiter.Count(), cost)
			}
			b := begin("b", freeAddr(t, 2))
			a.eventually("b is alive", func() bool { return a.state("b") == Alive })
			b.eventually("a is alive", func() bool { return b.state("a") == Alive })
		})
	}
}

// patient gives strangers as much time as they want.
func patient(c *memberlist.Config) {
	calm(c)
	c.TCPTimeout = 2 * await.Hang
}
