package netdump

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestWhole(t *testing.T) {
	interrupted := fmt.Errorf("links: %w", netlink.ErrDumpInterrupted)
	other := errors.New("not permitted")
	for name, c := range map[string]struct {
		answers []error // the last one is repeated
		calls   int
		fails   error
	}{
		"at once":          {[]error{nil}, 1, nil},
		"changed twice":    {[]error{interrupted, interrupted, nil}, 3, nil},
		"changed for ever": {[]error{interrupted}, tries, netlink.ErrDumpInterrupted},
		"another error":    {[]error{interrupted, other}, 2, other},
	} {
		calls := 0
		all, err := Whole(func() ([]int, error) {
			err := c.answers[min(calls, len(c.answers)-1)]
			calls++
			if err != nil {
				return []int{1}, err // some of it
			}
			return []int{1, 2}, nil
		})
		if !errors.Is(err, c.fails) || calls != c.calls {
			t.Errorf("%s: %v after %d calls, want %v after %d", name, err, calls, c.fails, c.calls)
		}
		if c.fails == nil && !slices.Equal(all, []int{1, 2}) {
			t.Errorf("%s: %v", name, all)
		}
	}
}
