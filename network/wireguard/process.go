package wireguard

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/barque/barque/internal/logline"
	"github.com/barque/barque/network/nodeaddr"
)

// processLink is a TUN device with WireGuard in this process. Its goroutines end with close.
type processLink struct{ device *device.Device }

// openTUN makes the TUN device.
func openTUN(mtu int, logger *slog.Logger) (*processLink, error) {
	made, err := tun.CreateTUN(LinkName, mtu)
	if err != nil {
		return nil, err
	}
	say := func(format string, args ...any) {
		// A peer that is away would fill the log.
		logline.Log(logger, slog.LevelDebug, "wireguard: "+fmt.Sprintf(format, args...))
	}
	return &processLink{
		device.NewDevice(made, conn.NewDefaultBind(), &device.Logger{Verbosef: device.DiscardLogf, Errorf: say})}, nil
}

func (l *processLink) state() (state, error) {
	text, err := l.device.IpcGet()
	if err != nil {
		return state{}, err
	}
	return parseState(text)
}

func (l *processLink) set(private *Key, port uint16, peers []change) error {
	return l.device.IpcSet(settings(private, port, peers))
}

func (l *processLink) start() error { return l.device.Up() }

func (l *processLink) alive() bool {
	select {
	case <-l.device.Wait():
		return false
	default:
	}
	link, err := nodeaddr.LinkNamed(LinkName)
	return err == nil && link != nil
}

func (l *processLink) close() { l.device.Close() }

// settings are changes in the lines of WireGuard's cross-platform interface.
func settings(private *Key, port uint16, peers []change) string {
	var text strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&text, "%s=%v\n", name, value) }
	if private != nil {
		line("private_key", hex.EncodeToString(private[:]))
	}
	if port != 0 {
		line("listen_port", port)
	}
	for _, c := range peers {
		line("public_key", hex.EncodeToString(c.key[:]))
		if c.remove {
			line("remove", true)
			continue
		}
		if c.endpoint.IsValid() {
			line("endpoint", c.endpoint)
		}
		line("persistent_keepalive_interval", int(keepalive.Seconds()))
		if c.replace {
			line("replace_allowed_ips", true)
		}
		for _, allowed := range c.allowed {
			line("allowed_ip", allowed)
		}
	}
	return text.String()
}

// parseState reads that interface's answer.
func parseState(text string) (state, error) {
	s := state{peers: map[Key]peerState{}}
	var key Key // of the peer that the lines are about
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		peer := s.peers[key]
		var err error
		switch name {
		case "private_key":
			s.private, err = keyOf(value)
		case "listen_port":
			s.port, err = number[uint16](value)
		case "public_key":
			key, err = keyOf(value)
			peer = peerState{}
		case "endpoint":
			peer.endpoint, err = netip.ParseAddrPort(value)
		case "persistent_keepalive_interval":
			var seconds int64
			seconds, err = number[int64](value)
			peer.keepalive = time.Duration(seconds) * time.Second
		case "allowed_ip":
			var allowed netip.Prefix
			allowed, err = netip.ParsePrefix(value)
			peer.allowed = append(peer.allowed, allowed)
		case "last_handshake_time_sec":
			var seconds int64
			if seconds, err = number[int64](value); seconds > 0 {
				peer.handshake = time.Unix(seconds, 0)
			}
		case "rx_bytes":
			peer.received, err = number[int64](value)
		case "tx_bytes":
			peer.sent, err = number[int64](value)
		}
		if err != nil {
			return state{}, fmt.Errorf("%s: %w", name, err)
		}
		if key != (Key{}) {
			s.peers[key] = peer
		}
	}
	return s, nil
}

func keyOf(text string) (key Key, err error) {
	data, err := hex.DecodeString(text)
	if err == nil && len(data) != len(key) {
		err = fmt.Errorf("it has %d bytes, want %d", len(data), len(key))
	}
	if err != nil {
		return key, err
	}
	return Key(data), nil
}

// number reads a number that fits.
func number[T uint16 | int64](text string) (T, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && int64(T(n)) != n {
		err = strconv.ErrRange
	}
	return T(n), err
}
