package osthread

import (
	"fmt"

	"github.com/vishvananda/netns"
)

// InNetwork calls f on a thread in the named network namespace (ip-netns(8)), and returns its
// error. The thread ends after f. Files that f opens and processes that it starts belong to that
// namespace.
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
