package nodeaddr

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LinkNamed returns the link of a name, or nil without one.
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

// RemoveLink removes the link of a name, and all routes through it. A missing link is no error.
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
