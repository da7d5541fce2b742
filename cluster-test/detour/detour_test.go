package detour

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/barque/barque/cluster-test/netspace"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/netname"
	"github.com/barque/barque/internal/osthread"
)

// pair is two network namespaces with a cable between them.
func pair(t *testing.T) [2]End {
	t.Helper()
	needs.Root(t, "slow networks between namespaces")
	var ends [2]End
	for i := range ends {
		ends[i] = End{fmt.Sprintf("detour-%d-%d", os.Getpid(), i), netip.AddrFrom4([4]byte{10, 99, 0, byte(1 + i)})}
		if err := netname.Make(ends[i].Namespace); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netname.Remove(ends[i].Namespace); err != nil {
				t.Error(err)
			}
		})
	}
	far, err := netns.GetFromName(ends[1].Namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	for i, e := range ends {
		err := osthread.InNetwork(e.Namespace, func() error {
			if i == 0 {
				attrs := netlink.NewLinkAttrs()
				attrs.Name = "eth0"
				if err := netlink.LinkAdd(
					&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0",
						PeerNamespace: netlink.NsFd(int(far))}); err != nil {
					return err
				}
			}
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return errors.Join(
				netlink.AddrAdd(link,
					&netlink.Addr{IPNet: &net.IPNet{IP: e.Addr.AsSlice(), Mask: net.CIDRMask(24, 32)}}),
				netlink.LinkSetUp(link))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return ends
}

// TestDelay: a connection that was there before meets the delay, and no delay after it.
func TestDelay(t *testing.T) {
	ends := pair(t)
	listener, err := netspace.Listen(ends[1].Namespace, "tcp", netip.AddrPortFrom(ends[1].Addr, 7).String())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := netspace.Dial(t.Context(), ends[0].Namespace, "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		conn.Close()
		<-served
	}()
	echo := func() time.Duration {
		t.Helper()
		if err := conn.SetDeadline(time.Now().Add(await.Hang)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	echo()
	const each = 60 * time.Millisecond
	d, err := Open(ends[:], func(_, _ netip.Addr) time.Duration { return each })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if took := echo(); took < 2*each {
			t.Errorf("there and back took %v, and each way takes %v", took, each)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "there and back takes less without the detour", func() bool {
		return echo() < 2*each // brief: a busy machine is slow now and then, not always
	})
}
