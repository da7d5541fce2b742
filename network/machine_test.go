package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/network/faults"
)

// TestFaults: what goes wrong with a machine's network outside of Barque heals as soon as it can,
// and the node tells of it.
func TestFaults(t *testing.T) {
	t.Parallel() // it has a network namespace of its own, and waits
	if !inNamespace(t) {
		return
	}
	c := startCluster(t)
	a, b := c.nodes[0], c.nodes[1]
	c.start(a, "default", "a1", nil)
	c.start(b, "default", "b1", nil)
	c.apply()
	c.serve(corev1.ProtocolTCP, nil, "b1")
	port := fmt.Sprintf("%s:%d", b.ip, nodePort)
	works := func(t *testing.T) {
		t.Helper()
		c.t = t
		c.answers("a1", "tcp4", net.JoinHostPort(clusterIP, "80"), "b1 "+c.ips["a1"])
		c.answers("b1", "tcp4", fmt.Sprintf("%s:%d", c.ips["a1"], podPort), "a1 "+c.ips["b1"])
		c.answers("lan", "tcp4", port, "b1 10.42.2.1")
	}
	works(t)
	var told Told
	if b.call("Told", struct{}{}, &told); len(told.Reasons) > 0 {
		t.Errorf("a node with which nothing is wrong tells %q", told.Reasons)
	}

	t.Run("a link that goes and comes", func(t *testing.T) {
		b.call("SetLink", false, nil)
		b.tells(t, faults.AddressMissing)
		b.call("SetLink", true, nil)
		b.tells(t, faults.AddressBack)
		works(t)
	})
	t.Run("an address that goes and comes", func(t *testing.T) {
		b.call("SetAddress", AddressArgs{Old: b.ip + "/24"}, nil)
		b.tells(t, faults.AddressMissing)
		b.call("SetAddress", AddressArgs{New: b.ip + "/24"}, nil)
		b.tells(t, faults.AddressBack)
		works(t)
	})
	t.Run("a ruleset that is flushed", func(t *testing.T) {
		b.call("Flush", struct{}{}, nil)
		b.tells(t, faults.RulesChanged)
		works(t)
	})
	t.Run("a table of connections that is full", func(t *testing.T) {
		if connections, err := faults.ReadConnections(); err != nil || connections.Max == 0 || connections.Max > 1<<20 {
			needs.Missing(t, fmt.Sprintf("a table of at most a million connections (it has %+v, %v)", connections, err),
				"what happens when it is full")
		}
		b.call("FillConnections", struct{}{}, nil)
		c.t = t
		c.answersOnce("lan", "tcp4", port, "timeout")
		b.tells(t, faults.ConnectionsFull)
		b.call("DropConnections", struct{}{}, nil)
		b.tells(t, faults.ConnectionsRoom)
		works(t)
	})
}

// TestMovedMachine: a node whose address nobody chose ends when its link has got another one, so
// that it is started again with that. A node whose address was chosen waits for it, and so does one
// that could be reached over another link.
func TestMovedMachine(t *testing.T) {
	t.Parallel() // it has a network namespace of its own, and waits
	if !inNamespace(t) {
		return
	}
	bridge := lan(t)
	start := func(number int, detected bool) *node {
		return startNodeAt(t, bridge, number,
			StartArgs{IPs: []string{fmt.Sprintf("192.168.77.%d1/24", number)}, Gateways: []string{"192.168.77.1"},
				Detected: detected})
	}
	moved, chosen, elsewhere := start(1, true), start(2, false), start(3, true)
	for _, n := range []*node{moved, chosen} {
		old := n.ip + "/24"
		n.call("SetAddress",
			AddressArgs{Old: old, New: strings.Replace(old, "1/", "2/", 1), Gateways: []string{"192.168.77.1"}}, nil)
	}
	elsewhere.call("SetAddress",
		AddressArgs{Old: elsewhere.ip + "/24", Link: "other", New: "192.168.77.32/24",
			Gateways: []string{"192.168.77.1"}}, nil)
	end := func(n *node) string {
		var told Told
		n.call("Told", struct{}{}, &told)
		return told.End
	}
	chosen.tells(t, faults.AddressMissing)
	elsewhere.tells(t, faults.AddressMissing)
	await.True(t, "the end of the node that has moved", func() bool { return end(moved) != "" })
	if got := end(moved); !strings.Contains(got, "192.168.77.11 ") || !strings.Contains(got, "192.168.77.12 ") {
		t.Errorf("the node that has moved ended with %q", got)
	}
	for _, n := range []*node{chosen, elsewhere} {
		if got := end(n); got != "" {
			t.Errorf("%s, which is to wait, ended with %q", n.name, got)
		}
	}
}

// TestReplacementLasts: another address counts once it has been there for long without a break.
func TestReplacementLasts(t *testing.T) {
	a, b, c := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	at, r := time.Unix(1000, 0), replacement{}
	for i, step := range []struct {
		after time.Duration
		now   netip.Addr // not valid: none is found
		want  bool
	}{
		{0, b, false}, {29 * time.Second, b, false}, {time.Second, b, true},
		{time.Second, netip.Addr{}, false}, {time.Hour, b, false}, // the address came back
		{29 * time.Second, b, false}, {2 * time.Second, c, false}, {29 * time.Second, c, false}, {time.Second, c, true},
	} {
		at = at.Add(step.after)
		if got := r.lasts(a, step.now, step.now.IsValid(), at); got != step.want {
			t.Errorf("step %d: %t, want %t", i, got, step.want)
		}
	}
}

// tells waits until the node has told of something.
func (n *node) tells(t *testing.T, reason string) {
	t.Helper()
	var all []string
	await.True(t, n.name+" tells "+reason, func() bool {
		var told Told
		n.call("Told", struct{}{}, &told)
		all = append(all, told.Reasons...)
		return slices.Contains(all, reason)
	})
}

// fillConnections makes tracked connections until there are as many as there may be.
func fillConnections() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	const batch = 200
	for next := uint32(0); ; {
		connections, err := faults.ReadConnections()
		if err != nil || connections.Count >= connections.Max {
			return err
		}
		if next > 4*uint32(connections.Max) {
			return fmt.Errorf("after %d connections that were made the kernel tells of %+v", next, connections)
		}
		for range min(100, (connections.Max-connections.Count)/batch+1) {
			var messages []netlink.Message
			for range batch {
				message, err := connection(next)
				if err != nil {
					return err
				}
				messages = append(messages, message)
				next++
			}
			if _, err := conn.SendMessages(messages); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return err
			}
		}
	}
}

// connection is the message that makes a UDP connection that both sides use. Its number makes it
// unlike others.
func connection(number uint32) (netlink.Message, error) {
	from, to := binary.BigEndian.AppendUint32(nil, 0xc6120000+number>>15), []byte{198, 19, 255, 1} // RFC 2544
	tuple := func(
		source, destination []byte, sourcePort, destinationPort uint16,
	) func(*netlink.AttributeEncoder) error {
		return func(e *netlink.AttributeEncoder) error {
			e.ByteOrder = binary.BigEndian
			e.Nested(nl.CTA_TUPLE_IP, func(e *netlink.AttributeEncoder) error {
				e.Bytes(nl.CTA_IP_V4_SRC, source)
				e.Bytes(nl.CTA_IP_V4_DST, destination)
				return nil
			})
			e.Nested(nl.CTA_TUPLE_PROTO, func(e *netlink.AttributeEncoder) error {
				e.ByteOrder = binary.BigEndian
				e.Uint8(nl.CTA_PROTO_NUM, unix.IPPROTO_UDP)
				e.Uint16(nl.CTA_PROTO_SRC_PORT, sourcePort)
				e.Uint16(nl.CTA_PROTO_DST_PORT, destinationPort)
				return nil
			})
			return nil
		}
	}
	const seenReply, assured, confirmed, hour = 1 << 1, 1 << 2, 1 << 3, 3600
	port := uint16(number&0x7fff) + 1
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(nl.CTA_TUPLE_ORIG, tuple(from, to, port, 9))
	e.Nested(nl.CTA_TUPLE_REPLY, tuple(to, from, 9, port))
	e.Uint32(nl.CTA_STATUS, seenReply|assured|confirmed)
	e.Uint32(nl.CTA_TIMEOUT, hour)
	attributes, err := e.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | netlink.HeaderType(nl.IPCTNL_MSG_CT_NEW),
			Flags: netlink.Request | netlink.Create},
		Data: append([]byte{unix.AF_INET, 0, 0, 0}, attributes...), // family, version, resource
	}, err
}
