package sides

import (
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/barque/barque/internal/needs"
)

// A server in one namespace is reached from another one and from this machine, and nothing is left.
// Two bridges have networks of their own.
func TestBridge(t *testing.T) {
	needs.Root(t, "network namespaces on a bridge")
	b, err := newBridge(2)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newBridge(1)
	if err != nil {
		t.Fatal(errors.Join(err, b.close()))
	}
	if b.subnet == other.subnet {
		t.Errorf("both have %s", b.subnet)
	}
	hosts := b.hosts()
	var ln net.Listener
	err = hosts[0].Do(func() (err error) {
		ln, err = net.Listen("tcp", net.JoinHostPort(hosts[0].Address, "0"))
		return err
	})
	if err != nil {
		t.Fatal(errors.Join(err, b.close(), other.close()))
	}
	dial := func() error {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			return err
		}
		return c.Close()
	}
	if err := errors.Join(dial(), hosts[1].Do(dial), ln.Close()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(b.close(), other.close()); err != nil {
		t.Error(err)
	}
	for _, gone := range slices.Concat([]netlink.Link{b.link, other.link}, b.plugs, other.plugs) {
		if _, err := netlink.LinkByName(gone.Attrs().Name); !errors.As(err, &netlink.LinkNotFoundError{}) {
			t.Errorf("%s is left: %v", gone.Attrs().Name, err)
		}
	}
}
