package transport

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/loglimit"
)

// TestTheSameIsSaidRarely: a server that another CA signed comes every two seconds for an hour.
// Complaints about another source, or of another fault, are logged beside it.
func TestTheSameIsSaidRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := newComplaints(slog.New(slog.NewTextHandler(&out, nil)))
		told := func() int { defer out.Reset(); return strings.Count(out.String(), "\n") }
		a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		of := func(from netip.Addr, port int, err error) {
			remote := net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, uint16(port)))
			c.warnOf(from, "closed", remote, &net.OpError{Op: "read", Net: "tcp", Source: remote, Err: err})
		}
		unknown := errors.New("unknown authority")
		for i := range 1800 {
			of(a, 40000+i, unknown)
			<-time.After(2 * time.Second)
		}
		if n := told(); n != 6 {
			t.Errorf("%d lines in an hour", n)
		}
		of(b, 1, unknown)
		of(a, 1, errors.New("another fault"))
		if n := told(); n != 2 {
			t.Errorf("%d lines of another source and another fault", n)
		}
		for i := range 10 * complaintSources { // faults of one client's choice
			of(a, 1, fmt.Errorf("fault %d", i))
		}
		if n := told(); n != loglimit.Burst-2 {
			t.Errorf("%d lines of many faults", n)
		}
		for i := range 10 * complaintSources {
			<-time.After(loglimit.Pause)
			of(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1, unknown)
		}
		if n := len(c.said); n > complaintSources {
			t.Errorf("%d sources are known", n)
		}
	})
}
