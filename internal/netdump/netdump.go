// Package netdump reads lists from the kernel by netlink. A list that changes during the read is
// incomplete, and marked so; the package then reads it again.
package netdump

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// tries is how often a changing list is read. One read takes less than a millisecond.
const tries = 100

// Whole calls list until the result was not changed during the read. After tries calls it fails
// with netlink.ErrDumpInterrupted; any other error of list ends it at once.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for range tries {
		all, err := list()
		if err == nil || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, fmt.Errorf("it was changed while it was read, %d times: %w", tries, netlink.ErrDumpInterrupted)
}
