package netspace

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/barque/barque/internal/osthread"
)

// Space is a network namespace of the test's own, with its loopback up. It has no name: it goes
// when no process is in it and no handle is open, however the test ends.
type Space struct{ netns.NsHandle }

// New makes a network namespace. The caller closes it.
func New() (Space, error) {
	s := Space{netns.None()}
	err := osthread.Do(func() (err error) { // the thread ends in the new namespace
		if s.NsHandle, err = netns.New(); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		if s.IsOpen() {
			err = errors.Join(err, s.Close())
		}
		return s, fmt.Errorf("make a network namespace: %w", err)
	}
	return s, nil
}

// Do calls f on a thread in the namespace. Files, sockets and processes of f belong there.
func (s Space) Do(f func() error) error {
	return osthread.Do(func() error {
		if err := netns.Set(s.NsHandle); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return f()
	})
}
