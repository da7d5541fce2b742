package clustertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/osthread"
)

// apiAddress is an address that no machine of a dev cluster has. ARP needs no network in common.
var apiAddress = netip.MustParseAddr("198.18.0.10")

// asker asks for an address by ARP on a cluster's bridge. Each question has a sender of its own, so
// that each answer names its question, however late it comes.
type asker struct {
	fd    int
	index int
	mac   net.HardwareAddr
	addr  netip.Addr

	mu      sync.Mutex
	asked   uint32
	answers map[uint32][]string // the MACs that have answered each question
	last    string              // the MAC that has answered last
	at      time.Time
}

// newAsker asks until the test ends.
func newAsker(t *testing.T, c *Cluster, addr netip.Addr) *asker {
	t.Helper()
	link, err := net.InterfaceByName("bq-" + c.ID)
	if err != nil {
		t.Fatal(err)
	}
	const arp = 0x0608 // as the kernel wants it: highest byte first
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, arp)
	if err != nil {
		t.Fatal(err)
	}
	a := &asker{fd: fd, index: link.Index, mac: link.HardwareAddr, addr: addr, answers: map[uint32][]string{}}
	// A read ends twice a second, so that the reader sees the end of the test.
	err = errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: arp, Ifindex: link.Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 500000}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { a.ask(ctx) })
	running.Go(func() { a.listen(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		unix.Close(fd)
	})
	return a
}

func (a *asker) ask(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		a.mu.Lock()
		a.asked++
		question := a.asked
		a.mu.Unlock()
		frame := slices.Concat(bytes.Repeat([]byte{0xff}, 6), a.mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, a.mac,
			sender(question),
			make([]byte, 6), a.addr.AsSlice())
		// A full queue loses the question, as a network may.
		_ = unix.Sendto(a.fd, frame, 0,
			&unix.SockaddrLinklayer{Ifindex: a.index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}})
	}
}

// sender is the address that asks a question: one of 100.64.0.0/10, which is nobody's here.
func sender(question uint32) []byte {
	return binary.BigEndian.AppendUint32(nil, 100<<24|64<<16|question)
}

func (a *asker) listen(ctx context.Context) {
	b := make([]byte, 256)
	for ctx.Err() == nil {
		n, _, err := unix.Recvfrom(a.fd, b, 0)
		if err != nil || n < 42 || b[21] != 2 || !bytes.Equal(b[28:32], a.addr.AsSlice()) || b[38] != 100 ||
			b[39]&0xc0 != 64 {
			continue // a time-out, a question, or an announcement
		}
		question, mac := binary.BigEndian.Uint32(b[38:])&(1<<22-1), net.HardwareAddr(b[22:28]).String()
		a.mu.Lock()
		if !slices.Contains(a.answers[question], mac) {
			a.answers[question] = append(a.answers[question], mac)
		}
		a.last, a.at = mac, time.Now()
		a.mu.Unlock()
	}
}

// double returns questions that several machines have answered.
func (a *asker) double() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for question, macs := range a.answers {
		if len(macs) > 1 {
			out = append(out, fmt.Sprintf("question %d of %d: %v", question, a.asked, macs))
		}
	}
	return out
}

// from returns a condition: a question asked after now is answered, by the node or by another one.
func (a *asker) from(c *Cluster, t *testing.T, node string, same bool) func(context.Context) error {
	began, mac := time.Now(), c.mac(t, node)
	return func(context.Context) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.at.After(began) {
			return fmt.Errorf("nobody has answered for %s", time.Since(began).Round(time.Millisecond))
		}
		if (a.last == mac) != same {
			return fmt.Errorf("%s answers", a.last)
		}
		return nil
	}
}

// mac is that of a node's interface on the bridge.
func (c *Cluster) mac(t *testing.T, node string) (mac string) {
	t.Helper()
	// The node's own /sys shows the interfaces of this machine.
	err := osthread.InNetwork(c.Netns(node), func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr.String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// TestOneServerAnswersForTheAPI kills, pauses and cuts off the leader, and takes leadership away
// from it. The new leader answers for the API's address each time, and no question is answered
// twice. A paused process finds questions waiting when it goes on.
func TestOneServerAnswersForTheAPI(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Servers: 3, ServerArgs: []string{"--api-address=" + apiAddress.String()}})
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	a := newAsker(t, c, apiAddress)
	Eventually(t, deadline, "the leader answers", a.from(c, t, c.Leader(t), true))
	for _, fault := range []struct {
		does, undo []string
	}{
		{[]string{"kill"}, []string{"start"}},
		{[]string{"pause"}, []string{"resume"}},
		{[]string{"partition"}, []string{"heal"}},
		{[]string{"kill"}, []string{"start"}},
		{[]string{"stop"}, []string{"start"}},
	} {
		leader := c.Leader(t)
		Eventually(t, deadline, "the leader answers before the fault", a.from(c, t, leader, true))
		c.Dev(t, append(fault.does, leader)...)
		took := Eventually(t, deadline, "another server answers after "+fault.does[0], a.from(c, t, leader, false))
		t.Logf("%s of %s: another server answers after %s at most", fault.does[0], leader, took)
		if undo := fault.undo; undo[0] == "heal" {
			c.Dev(t, undo...)
		} else {
			c.Dev(t, append(undo, leader)...)
		}
		Eventually(t, deadline, "a whole cluster after "+fault.undo[0], c.Healthy)
		for _, what := range a.double() {
			t.Errorf("after %s: %s", fault.does[0], what)
		}
	}
	Eventually(t, deadline, "the status has the address", func(ctx context.Context) error {
		s, err := c.Status(ctx)
		if err == nil &&
			(len(s.Addresses) != 1 || s.Addresses[0].Node != s.Leader ||
				s.Addresses[0].Address != apiAddress.String()) {
			err = fmt.Errorf("it has %+v with the leader %q", s.Addresses, s.Leader)
		}
		return err
	})
}
