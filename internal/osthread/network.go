package osthread

import (
	"fmt"

	"github.com/vishvananda/netns"
)

// InNetwork calls f on a thread that is in the named network namespace (ip-netns(8)) and ends with
// it, and returns its error. What f opens or starts belongs there.
func InNetwork(name string, f func() error) error {
	return Do(func() error {
		there, err := netns.GetFromName(name)
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", name, err)
		}
		defer there.Close()
		if err := netns.Set(there); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", name, err)
		}
		return f()
	})
}
