// Package remains has the type in which each package says what it leaves on a machine beside the data
// directory of a node: what it makes, and what is there after the process has ended. Whoever takes a
// node off a machine collects them.
package remains

import (
	"context"
	"errors"
	"fmt"
)

// Kind is one kind of what a package leaves.
type Kind struct {
	// Name says what it is, such as "nftables tables".
	Name string
	// Find returns the names of those that are there now.
	Find func(context.Context) ([]string, error)
	// Remove removes all of them. It may be repeated, and succeeds where none is there.
	Remove func(context.Context) error
}

// Remove removes all that the kinds have, in their order. It does as much as it can, and returns all
// errors.
func Remove(ctx context.Context, kinds []Kind) error {
	var errs []error
	for _, k := range kinds {
		if err := k.Remove(ctx); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", k.Name, err))
		}
	}
	return errors.Join(errs...)
}
