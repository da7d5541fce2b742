// Package remains has the type in which each package lists the things that it leaves on a machine
// beside the data directory of a node: those that it makes, and that are there after the process
// has ended. A removal of the node collects the lists.
package remains

import (
	"context"
	"errors"
	"fmt"
)

// Kind is one kind of things that a package leaves.
type Kind struct {
	// Name is for plans, such as "nftables tables".
	Name string
	// Find returns the names of those that are there now.
	Find func(context.Context) ([]string, error)
	// Remove removes all of them. It may be repeated, and succeeds where none is there.
	Remove func(context.Context) error
}

// Remove removes all that the kinds have, in their order. It does as much as it can, and returns
// all errors.
func Remove(ctx context.Context, kinds []Kind) error {
	var errs []error
	for _, k := range kinds {
		if err := k.Remove(ctx); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", k.Name, err))
		}
	}
	return errors.Join(errs...)
}
