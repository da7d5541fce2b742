// Package netdump reads lists from the kernel by netlink. One that is changed while it is read
// comes back incomplete, and says so; what is to be done is to read it again.
package netdump

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// tries is how often a list is read until somebody changes it all the time. One takes less than a
// millisecond.
const tries = 100

// Whole calls list until nobody has changed in the middle what it returns. Where that does not come
// about it fails with netlink.ErrDumpInterrupted; any other error of list ends it at once.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for range tries {
		all, err := list()
		if err == nil || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, fmt.Errorf("it was changed while it was read, %d times: %w", tries, netlink.ErrDumpInterrupted)
}
