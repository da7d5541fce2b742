package network

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/wireguard"
)

// tap keeps all frames that pass the links of this namespace.
type tap struct {
	mu     sync.Mutex
	frames bytes.Buffer
	sealed int // packets to the port of WireGuard
}

// startTap reads until the test ends.
func startTap(t *testing.T) *tap {
	t.Helper()
	protocol := uint16(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		int(protocol<<8|protocol>>8))
	must(t, err)
	file := os.NewFile(uintptr(fd), "tap") // closing it ends the reader
	tap, ended := new(tap), make(chan struct{})
	go func() {
		defer close(ended)
		frame := make([]byte, 1<<16)
		for {
			n, err := file.Read(frame)
			if err != nil {
				return
			}
			tap.add(frame[:n])
		}
	}()
	t.Cleanup(func() {
		file.Close()
		await.Value(t, "the end of the tap", ended)
	})
	return tap
}

func (s *tap) add(frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frames.Write(frame)
	const ethernet, ip4, protocol = 14, 20, 9
	if len(frame) >= ethernet+ip4+4 && frame[12] == 8 && frame[13] == 0 &&
		frame[ethernet+protocol] == unix.IPPROTO_UDP &&
		binary.BigEndian.Uint16(frame[ethernet+ip4+2:]) == wireguard.DefaultPort {
		s.sealed++
	}
}

// shows tells whether a text was seen in clear.
func (s *tap) shows(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Contains(s.frames.Bytes(), []byte(text))
}

// TestWireGuard sends real packets between nodes of three layer-2 networks, of which one wants
// WireGuard to all, and looks at the wires.
func TestWireGuard(t *testing.T) {
	const untested = "WireGuard between nodes"
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		needs.NoError(t, err, untested)
	}
	if !inNamespace(t) {
		return
	}
	c := startFarCluster(t, overlay.WireGuard)
	wires := startTap(t)
	for i, n := range c.nodes {
		c.start(n, "default", fmt.Sprintf("p%d", i+1), nil)
	}
	c.apply()
	at := func(pod string) string { return net.JoinHostPort(c.ips[pod], fmt.Sprint(podPort)) }
	at6 := func(pod string) string { return net.JoinHostPort(c.ips6[pod], fmt.Sprint(podPort)) }
	by := func(pod, client string) string { return pod + " " + client }
	sealed := [][2]string{{"p1", "p2"}, {"p3", "p1"}, {"p2", "p1"}}
	everyPair := func(t *testing.T) {
		t.Helper()
		c.t = t
		for _, pair := range sealed {
			for _, transport := range []string{"tcp", "udp"} {
				c.answers(pair[0], transport+"4", at(pair[1]), by(pair[1], c.ips[pair[0]]))
				c.answers(pair[0], transport+"6", at6(pair[1]), by(pair[1], c.ips6[pair[0]]))
			}
		}
	}
	t.Run("pods", everyPair)
	t.Run("another pair keeps VXLAN", func(t *testing.T) {
		c.t = t
		c.answers("p2", "tcp4", at("p3"), by("p3", c.ips["p2"]))
		c.answers("p2", "tcp6", at6("p3"), by("p3", c.ips6["p2"]))
	})
	t.Run("whole packets", func(t *testing.T) {
		c.t = t
		for _, pair := range sealed {
			c.mtu(pair[0], 1440)
			c.answers(pair[0], "whole/1440", at(pair[1]), by(pair[1], c.ips[pair[0]]))
			c.answers(pair[0], "whole/1440", at6(pair[1]), by(pair[1], c.ips6[pair[0]]))
		}
	})
	t.Run("nodes and services", func(t *testing.T) {
		c.t = t
		c.answers("node-1", "tcp4", at("p2"), by("p2", "10.42.1.0"))
		c.answers("node-2", "tcp6", at6("p1"), by("p1", "fd00:42:0:2::"))
		c.serve(corev1.ProtocolTCP, nil, "p3")
		c.answers("p1", "tcp4", net.JoinHostPort(clusterIP, "80"), by("p3", c.ips["p1"]))
	})
	t.Run("wires", func(t *testing.T) {
		for _, pair := range sealed {
			for _, text := range []string{by(pair[1], c.ips[pair[0]]), by(pair[1], c.ips6[pair[0]])} {
				if wires.shows(text) {
					t.Errorf("%q was seen in clear", text)
				}
			}
		}
		if clear := by("p3", c.ips["p2"]); !wires.shows(clear) || wires.sealed == 0 {
			t.Errorf("of VXLAN %q was seen: %v; %d packets of WireGuard", clear, wires.shows(clear), wires.sealed)
		}
	})
	t.Run("handshakes are known", func(t *testing.T) {
		var seen []wireguard.Seen
		c.nodes[0].call("Tunnels", struct{}{}, &seen)
		if len(seen) != 2 || seen[0].Node != "node-2" || seen[0].Handshake.IsZero() || seen[1].Handshake.IsZero() ||
			seen[0].Received == 0 {
			t.Errorf("node-1 knows %+v", seen)
		}
	})
	t.Run("a node that starts again", func(t *testing.T) {
		c.nodes[0].call("Stop", struct{}{}, nil)
		c.nodes[0].call("Restart", struct{}{}, nil)
		everyPair(t)
	})
	t.Run("another key", func(t *testing.T) {
		c.t = t
		c.nodes[0].call("Stop", struct{}{}, nil)
		must(t, os.Remove(filepath.Join(c.nodes[0].dir, keyFile)))
		old := c.objects.Nodes[0].Annotations[wireguard.Annotation]
		c.nodes[0].call("Restart", struct{}{}, nil)
		await.True(t, "node-1 tells another key", func() bool {
			c.nodes[0].call("Annotations", "node-1", &c.objects.Nodes[0].Annotations)
			return c.objects.Nodes[0].Annotations[wireguard.Annotation] != old
		})
		c.apply()
		everyPair(t)
	})
	t.Run("a damaged key of a node that asks for no WireGuard", func(t *testing.T) {
		c.t = t
		n := c.nodes[2]
		n.call("Stop", struct{}{}, nil)
		must(t, os.WriteFile(filepath.Join(n.dir, keyFile), []byte("AAAA\n"), 0o600))
		n.call("Restart", struct{}{}, nil)
		await.True(t, "node-3 tells that it has no WireGuard", func() bool {
			n.call("Annotations", "node-3", &c.objects.Nodes[2].Annotations)
			return c.objects.Nodes[2].Annotations[wireguard.Annotation] == wireguard.Endpoint{}.String()
		})
		c.apply()
		c.answers("p2", "tcp4", at("p3"), by("p3", c.ips["p2"]))
	})
	t.Run("purge", func(t *testing.T) {
		c.t = t
		for _, n := range c.nodes {
			n.call("Stop", struct{}{}, nil)
			n.call("Purge", struct{}{}, nil)
			var index int
			if n.call("LinkIndex", wireguard.LinkName, &index); index != 0 {
				t.Errorf("%s: the link is left", n.name)
			}
		}
	})
}
