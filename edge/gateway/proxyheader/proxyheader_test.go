package proxyheader

import (
	"bufio"
	"bytes"
	"testing"
)

func TestRead(t *testing.T) {
	v2 := func(more ...byte) string { return string(append(append([]byte{}, signature...), more...)) }
	for _, c := range []struct {
		name, header, want string
		bad                bool
	}{
		{"version 1", "PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\n", "192.0.2.7:5000", false},
		{"version 1, IPv6", "PROXY TCP6 2001:db8::7 2001:db8::1 5000 80\r\n", "[2001:db8::7]:5000", false},
		{"version 1, unknown", "PROXY UNKNOWN\r\n", "invalid AddrPort", false},
		{"version 1, wrong family", "PROXY TCP4 2001:db8::7 2001:db8::1 5000 80\r\n", "invalid AddrPort", true},
		{"version 1, too long", "PROXY " + string(bytes.Repeat([]byte("x"), 200)), "invalid AddrPort", true},
		{"version 1, a port too large", "PROXY TCP4 192.0.2.7 192.0.2.1 70000 80\r\n", "invalid AddrPort", true},
		{"version 2", v2(0x21, 0x11, 0, 12, 192, 0, 2, 7, 192, 0, 2, 1, 0x13, 0x88, 0, 80), "192.0.2.7:5000", false},
		{"version 2, local", v2(0x20, 0, 0, 0), "invalid AddrPort", false},
		{"version 2, too short", v2(0x21, 0x11, 0, 4, 1, 2, 3, 4), "invalid AddrPort", true},
		{"version 2, too long", v2(0x21, 0x11, 0xff, 0xff), "invalid AddrPort", true},
		{"version 3", v2(0x31, 0x11, 0, 0), "invalid AddrPort", true},
		{"no header", "GET / HTTP/1.1\r\n\r\n", "invalid AddrPort", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(bufio.NewReader(bytes.NewReader([]byte(c.header))))
			if got.String() != c.want || (err != nil) != c.bad {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\n"))
	f.Add([]byte("PROXY UNKNOWN\r\n"))
	f.Add(append(append([]byte{}, signature...), 0x21, 0x11, 0, 12, 192, 0, 2, 7, 192, 0, 2, 1, 0x13, 0x88, 0, 80))
	f.Fuzz(func(t *testing.T, data []byte) {
		addr, err := Read(bufio.NewReader(bytes.NewReader(data)))
		if err != nil && addr.IsValid() {
			t.Error("an address with an error")
		}
		if addr.IsValid() && addr.Addr().Zone() != "" {
			t.Error("a zone")
		}
	})
}
