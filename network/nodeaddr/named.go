package nodeaddr

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LinkNamed returns the link of a name, or nil where there is none.
func LinkNamed(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the link %s: %w", name, err)
	}
	return link, nil
}

// RemoveLink removes the link of a name, and all that leads through it. It succeeds where there is
// none.
func RemoveLink(name string) error {
	link, err := LinkNamed(name)
	if err != nil || link == nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove the link %s: %w", name, err)
	}
	return nil
}
